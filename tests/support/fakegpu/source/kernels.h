// What does the CPU compute where it has no kernel of that name? Registered for CPU tensors, which
// is what the fallback makes of the device's.

#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <torch/library.h>

#include "timeline.h"

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Sizes = at::IntArrayRef;

// For an LSTM on anything but the CPU torch calls a fused cell, which the CPU does not have.
// The workspace carries the four activated gates from the forward to the backward pass.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& old_cell,
    const std::optional<at::Tensor>& input_bias,
    const std::optional<at::Tensor>& hidden_bias) {
  at::Tensor sums = input_gates + hidden_gates;
  for (const auto& bias : {input_bias, hidden_bias}) {
    if (bias.has_value() && bias->defined()) {
      sums = sums + *bias;
    }
  }
  const auto gates = sums.chunk(4, 1);
  const auto in = gates[0].sigmoid();
  const auto forget = gates[1].sigmoid();
  const auto candidate = gates[2].tanh();
  const auto out = gates[3].sigmoid();
  const auto cell = forget * old_cell + in * candidate;
  return {out * cell.tanh(), cell, at::cat({in, forget, candidate, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const std::optional<at::Tensor>& hidden_gradient,
    const std::optional<at::Tensor>& cell_gradient,
    const at::Tensor& old_cell,
    const at::Tensor& cell,
    const at::Tensor& workspace,
    bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const auto &in = gates[0], &forget = gates[1], &candidate = gates[2], &out = gates[3];
  const auto squashed = cell.tanh();
  const auto or_zero = [&cell](const std::optional<at::Tensor>& gradient) {
    return gradient.has_value() && gradient->defined() ? *gradient : cell * 0;
  };
  const auto from_hidden = or_zero(hidden_gradient);
  const auto total = or_zero(cell_gradient) + from_hidden * out * (1 - squashed * squashed);
  const auto gate_gradients = at::cat(
      {total * candidate * in * (1 - in),
       total * old_cell * forget * (1 - forget),
       total * in * (1 - candidate * candidate),
       from_hidden * squashed * out * (1 - out)},
      1);
  return {gate_gradients, total * forget, has_bias ? gate_gradients.sum(0) : at::Tensor()};
}

// -------------------------------------------------------------------------------- convolution

Tensor convolution(
    const Tensor& input, const Tensor& weight, const OptionalTensor& bias, Sizes stride,
    Sizes padding, Sizes dilation, bool transposed, Sizes output_padding, int64_t groups) {
  return at::convolution(
      input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, Sizes stride, Sizes padding,
    Sizes dilation, bool transposed, Sizes output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  // The gradient of the bias has as many numbers as there are channels in the output.
  const int64_t channels[] = {gradient.size(1)};
  return at::convolution_backward(
      gradient, input, weight, Sizes(channels), stride, padding, dilation, transposed,
      output_padding, groups, wanted);
}

// ---------------------------------------------------------------------------------- attention

// Without simulated time as torch does for any device it does not know: product by product.
int64_t choose_attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
    double dropout, bool, std::optional<double>, bool) {
  const bool fits = simulated && dropout == 0.0 && query.dim() == 4 &&
      query.size(-1) == value.size(-1) && query.size(1) == key.size(1) &&
      !(mask && mask->requires_grad());
  return static_cast<int64_t>(fits ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

using Attention = std::tuple<
    Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Attention attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
    double dropout, bool is_causal, bool, std::optional<double> scale) {
  auto [output, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key, value, dropout, is_causal, mask, scale);
  const auto none = at::empty({0}, query.options());
  return {output, sums, none, none, query.size(2), key.size(2), none, none, none};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& mask, std::array<bool, 4>, const Tensor& output, const Tensor& sums,
    const Tensor&, const Tensor&, int64_t, int64_t, double dropout, bool is_causal, const Tensor&,
    const Tensor&, std::optional<double> scale) {
  auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient, query, key, value, output, sums, dropout, is_causal,
      mask.defined() ? OptionalTensor(mask) : std::nullopt, scale);
  return {of_query, of_key, of_value, Tensor()};
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  library.impl("convolution_overrideable", TORCH_FN(convolution));
  library.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  library.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(attention));
  library.impl(
      "_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(attention_backward));
}

// --------------------------------------------------------------- recurrent layers in eval mode

// cuDNN keeps what the backward pass needs in training mode only.
template <typename... Tensors>
std::tuple<Tensors...> refuse_backward(std::tuple<Tensors...> outputs, bool train) {
  std::apply(
      [train](const auto&... output) {
        const auto refuse = [](const at::TensorBase&) {
          TORCH_CHECK(false, "fakegpu RNN backward can only be called in training mode");
        };
        ((output.requires_grad() && !train ? void(output.register_hook(refuse)) : void()), ...);
      },
      outputs);
  return outputs;
}

using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

Triple lstm_of_batch(
    const Tensor& input, at::TensorList state, at::TensorList weights, bool biases, int64_t layers,
    double dropout, bool train, bool both_ways, bool batch_first) {
  return refuse_backward(
      at::native::lstm(
          input, state, weights, biases, layers, dropout, train, both_ways, batch_first),
      train);
}

Triple lstm_of_packed(
    const Tensor& data, const Tensor& sizes, at::TensorList state, at::TensorList weights,
    bool biases, int64_t layers, double dropout, bool train, bool both_ways) {
  return refuse_backward(
      at::native::lstm(data, sizes, state, weights, biases, layers, dropout, train, both_ways),
      train);
}

#define RECURRENT(layer)                                                                          \
  Pair layer##_of_batch(                                                                          \
      const Tensor& input, const Tensor& state, at::TensorList weights, bool biases,              \
      int64_t layers, double dropout, bool train, bool both_ways, bool batch_first) {             \
    return refuse_backward(                                                                       \
        at::native::layer(                                                                        \
            input, state, weights, biases, layers, dropout, train, both_ways, batch_first),       \
        train);                                                                                   \
  }                                                                                               \
  Pair layer##_of_packed(                                                                         \
      const Tensor& data, const Tensor& sizes, const Tensor& state, at::TensorList weights,       \
      bool biases, int64_t layers, double dropout, bool train, bool both_ways) {                  \
    return refuse_backward(                                                                       \
        at::native::layer(                                                                        \
            data, sizes, state, weights, biases, layers, dropout, train, both_ways),              \
        train);                                                                                   \
  }
RECURRENT(gru)
RECURRENT(rnn_tanh)
RECURRENT(rnn_relu)

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("lstm.input", TORCH_FN(lstm_of_batch));
  library.impl("lstm.data", TORCH_FN(lstm_of_packed));
  library.impl("gru.input", TORCH_FN(gru_of_batch));
  library.impl("gru.data", TORCH_FN(gru_of_packed));
  library.impl("rnn_tanh.input", TORCH_FN(rnn_tanh_of_batch));
  library.impl("rnn_tanh.data", TORCH_FN(rnn_tanh_of_packed));
  library.impl("rnn_relu.input", TORCH_FN(rnn_relu_of_batch));
  library.impl("rnn_relu.data", TORCH_FN(rnn_relu_of_packed));
}

} // namespace

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choose_attention)
} // namespace at::native
