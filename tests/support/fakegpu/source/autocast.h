// Which operators does autocast run in which precision?

#pragma once

#include <torch/library.h>

#include "device.h"

// Declared here because the header that declares them, ATen/autocast_mode.h, takes as long to
// compile as this whole file.
namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
TORCH_API Tensor cached_cast(
    at::ScalarType to_type, const Tensor& arg, c10::DeviceType device_type);
} // namespace at::autocast

namespace {

void cast_and_call(
    const c10::OperatorHandle& op, torch::jit::Stack* stack, at::ScalarType dtype) {
  const c10::impl::ExcludeDispatchKeyGuard only_once(c10::DispatchKey::AutocastPrivateUse1);
  const auto arguments = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  for (auto value = stack->end() - arguments; value != stack->end(); ++value) {
    if (value->isTensor() && value->toTensor().defined()) {
      *value = at::autocast::cached_cast(dtype, value->toTensor(), kType);
    }
  }
  op.callBoxed(stack);
}

void call_in_autocast_dtype(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  cast_and_call(op, stack, at::autocast::get_autocast_dtype(kType));
}

void call_in_float32(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  cast_and_call(op, stack, at::kFloat);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

// The part of CUDA's lists that transformers and their losses meet.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library) {
  for (const char* name : {
           "matmul", "mm", "addmm", "bmm", "baddbmm", "linear", "scaled_dot_product_attention",
           "conv1d", "conv2d", "conv3d"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_in_autocast_dtype>());
  }
  for (const char* name : {
           "softmax.int", "log_softmax.int", "layer_norm", "nll_loss", "cross_entropy_loss",
           "mse_loss", "binary_cross_entropy_with_logits"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_in_float32>());
  }
}

} // namespace
