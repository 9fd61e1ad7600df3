// What is the least that torch accepts as an accelerator?
//
// One device of type PrivateUse1. Its memory is host memory with another label, its kernels are
// the CPU kernels on copies, and it is always idle, so streams and events have nothing to wait
// for. What is real is the bookkeeping: every tensor is counted against a byte limit, and an
// allocation beyond it raises the same exception that a full GPU raises.
//
// Neither Python nor pybind11 headers, and no header that pulls in all of ATen: they would
// triple the compile time. Python reaches the one function it needs through ctypes.

#define AT_PER_OPERATOR_HEADERS // or ATen's own headers include every operator there is

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "memory.h"

// Declared here because the header that declares them, ATen/autocast_mode.h, takes as long to
// compile as this whole file.
namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
TORCH_API Tensor cached_cast(
    at::ScalarType to_type, const Tensor& arg, c10::DeviceType device_type);
} // namespace at::autocast

namespace {

// ------------------------------------------------------------------ devices, streams and events

using Instant = std::chrono::steady_clock::time_point;

thread_local c10::StreamId current_stream = 0;
std::atomic<c10::StreamId> last_stream{0};

// Work ends before the call that started it returns, so every wait is over at once and the
// host clock at `record` is the device time of the event.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kDevice.type();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }
  c10::Device getDevice() const override {
    return kDevice;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    check_is_ours(device);
    return kDevice;
  }
  void setDevice(c10::Device device) const override {
    check_is_ours(device);
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}

  c10::Stream getStream(c10::Device) const override {
    return stream(current_stream);
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return stream(0);
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return stream(++last_stream);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current_stream, next.id()));
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Instant();
    }
    *static_cast<Instant*>(*event) = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Instant*>(event);
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    const std::chrono::duration<double, std::milli> milliseconds =
        *static_cast<Instant*>(second) - *static_cast<Instant*>(first);
    return milliseconds.count();
  }

 private:
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, kDevice, id);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return kDevice.index();
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &PinnedMemory::instance();
  }
  bool isPinnedPtr(const void* data) const override {
    return PinnedMemory::instance().contains(data);
  }
  // The kernels run on the CPU and accept no other generator.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), nbytes);
  }
};

const bool hooks_are_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

// --------------------------------------------------------------------------------- operators

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  check_is_ours(device.value_or(kDevice));
  return at::detail::empty_generic(size, &memory(), kKeys, at::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  check_is_ours(device.value_or(kDevice));
  return at::detail::empty_strided_generic(
      size, stride, &memory(), kKeys, at::dtype_or_default(dtype));
}

// The same bytes seen as a CPU tensor, for the copy kernels. It must not outlive `tensor`.
at::Tensor view_from_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) {
    return tensor;
  }
  return at::from_blob(
      const_cast<void*>(tensor.storage().data()),
      tensor.sizes(),
      tensor.strides(),
      tensor.storage_offset(),
      [](void*) {},
      tensor.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  view_from_host(to).copy_(view_from_host(from));
  return to;
}

// The fallback returns results of `out=` operators this way, whatever their size was before.
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

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

// Only what the fallback cannot do: make memory, move it, look at it in another shape, and the
// LSTM.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("resize_", TORCH_FN(at::native::resize_));
  library.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  library.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
}

// ---------------------------------------------------------------------------------- autocast

void cast_and_call(
    const c10::OperatorHandle& op, torch::jit::Stack* stack, at::ScalarType dtype) {
  const c10::impl::ExcludeDispatchKeyGuard only_once(c10::DispatchKey::AutocastPrivateUse1);
  const auto arguments = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  for (auto value = stack->end() - arguments; value != stack->end(); ++value) {
    if (value->isTensor() && value->toTensor().defined()) {
      *value = at::autocast::cached_cast(dtype, value->toTensor(), kDevice.type());
    }
  }
  op.callBoxed(stack);
}

void call_in_autocast_dtype(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  cast_and_call(op, stack, at::autocast::get_autocast_dtype(kDevice.type()));
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
           "matmul", "mm", "addmm", "bmm", "baddbmm", "linear", "scaled_dot_product_attention"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_in_autocast_dtype>());
  }
  for (const char* name : {
           "softmax.int", "log_softmax.int", "layer_norm", "nll_loss", "cross_entropy_loss",
           "mse_loss", "binary_cross_entropy_with_logits"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_in_float32>());
  }
}

} // namespace

extern "C" void fakegpu_set_limit_bytes(int64_t nbytes) {
  memory().set_limit(nbytes);
}
