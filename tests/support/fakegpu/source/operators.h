// How does an operator run on the fake GPU? The CPU's kernel computes it, the timeline gets its time.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "facts.h"
#include "graph.h"
#include "guard.h"

namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// Memory is made on the device that is current.
struct On {
  explicit On(std::optional<at::Device> device)
      : before(std::exchange(current_device, resolve(device.value_or(at::Device(kType))).index())) {
  }
  ~On() {
    current_device = before;
  }
  const c10::DeviceIndex before;
};

at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const On there(device);
  return at::detail::empty_generic(size, &memory(), kKeys, at::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  const On there(device);
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

thread_local int inside = 0; // an operator: what it moves between host and device is not real
struct Inside {
  Inside() {
    ++inside;
  }
  ~Inside() {
    --inside;
  }
};

Work work_of_copy(const at::Tensor& from, const at::Tensor& to, bool pinned) {
  static const int32_t within = timeline().name("Memcpy DtoD");
  static const int32_t names[2][2] = {
      {timeline().name("Memcpy DtoH (Device -> Pageable)"),
       timeline().name("Memcpy DtoH (Device -> Pinned)")},
      {timeline().name("Memcpy HtoD (Pageable -> Device)"),
       timeline().name("Memcpy HtoD (Pinned -> Device)")}};
  const double nbytes = static_cast<double>(from.numel()) * from.itemsize();
  if (!from.is_cpu() && !to.is_cpu()) {
    const double moved = nbytes + static_cast<double>(to.numel()) * to.itemsize();
    return {within, kKernel, times.kernel + moved / times.bytes, moved, 0};
  }
  const double rate = times.link * (pinned ? 1.0 : times.pageable);
  return {names[from.is_cpu()][pinned], from.is_cpu() ? kToDevice : kToHost,
          times.kernel + nbytes / rate, nbytes, 0};
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (inside || !(simulated || capturing)) {
    view_from_host(to).copy_(view_from_host(from));
    return to;
  }
  const bool crosses = from.is_cpu() || to.is_cpu();
  const at::Tensor& host = from.is_cpu() ? from : to;
  const bool pinned = crosses && PinnedMemory::instance().contains(host.storage().data());
  // As CUDA does: without non_blocking the host waits for the stream, and so it does for memory
  // that is not pinned.
  const bool waits = crosses && !(non_blocking && pinned);
  TORCH_CHECK(!(waits && capturing), kCapturing);
  const auto work = work_of_copy(from, to, pinned);
  const auto place = Place::current((from.is_cpu() ? to : from).device().index());
  const auto copy = [from, to] { view_from_host(to).copy_(view_from_host(from)); };
  if (capturing) {
    Graph::current().keep(to);
    Graph::current().add(copy, place, work);
  }
  copy();
  if (!capturing) {
    timeline().launch(place, work);
  }
  if (waits) {
    timeline().wait(timeline().end_of(place));
  }
  return to;
}

// The fallback returns results of `out=` operators this way, whatever their size was before.
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

// What a kernel reads and writes, and where it runs: where its first tensor is.
struct Cost {
  double bytes = 0;
  std::optional<at::ScalarType> type;
  std::optional<c10::DeviceIndex> device;

  void add(const c10::IValue& value) {
    for_each_tensor(value, [this](const at::Tensor& tensor) {
      bytes += static_cast<double>(tensor.numel()) * tensor.itemsize();
      if (!type && c10::isFloatingType(tensor.scalar_type())) {
        type = tensor.scalar_type();
      }
      if (!device && !tensor.is_cpu()) {
        device = tensor.device().index();
      }
    });
  }
};

Arguments results_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  return torch::jit::last(stack, op.schema().returns().size());
}

// The same call again, with its results where the first one left them.
void run_again(
    const c10::OperatorHandle& op,
    torch::jit::Stack stack,
    const std::vector<c10::IValue>& first) {
  const Inside now;
  at::native::cpu_fallback(op, &stack);
  const auto results = results_of(op, stack);
  for (size_t i = 0; i < results.size(); ++i) {
    if (op.schema().returns()[i].alias_info() == nullptr && first[i].isTensor() &&
        first[i].toTensor().defined()) {
      view_from_host(first[i].toTensor()).copy_(view_from_host(results[i].toTensor()));
    }
  }
}

void run_and_time(const c10::OperatorHandle& op, torch::jit::Stack* stack, const Facts& facts) {
  const auto& schema = op.schema();
  const auto count = static_cast<std::ptrdiff_t>(schema.arguments().size());
  const std::vector<c10::IValue> arguments(stack->end() - count, stack->end());
  const bool waits = host_waits(facts, arguments);
  TORCH_CHECK(!(waits && capturing), kCapturing);
  Cost cost;
  for (size_t i = 0; i < arguments.size(); ++i) {
    cost.add(arguments[i]);
    if (const auto* alias = schema.arguments()[i].alias_info();
        capturing && alias && alias->isWrite()) {
      for_each_tensor(
          arguments[i], [](const at::Tensor& tensor) { Graph::current().keep(tensor); });
    }
  }
  {
    const Inside now;
    at::native::cpu_fallback(op, stack);
  }
  const auto results = results_of(op, *stack);
  for (size_t i = 0; i < results.size(); ++i) {
    if (schema.returns()[i].alias_info() == nullptr) {
      cost.add(results[i]);
    }
  }
  const double flops = facts.flops ? facts.flops(arguments, results[0].toTensor()) : 0;
  const Work work{
      facts.name, facts.kind,
      times.kernel + cost.bytes / times.bytes + flops / rate_of(cost.type.value_or(at::kFloat)),
      cost.bytes, flops};
  const auto place = Place::current(cost.device.value_or(current_device));
  if (capturing) {
    Graph::current().add(
        [op, arguments, first = results.vec()] { run_again(op, arguments, first); }, place, work);
    return;
  }
  timeline().launch(place, work);
  if (waits) {
    timeline().wait(timeline().end_of(place));
  }
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Facts& facts = facts_of(op);
  refuse_mixed_devices(facts, torch::jit::last(*stack, op.schema().arguments().size()));
  if (inside || !(simulated || capturing)) {
    at::native::cpu_fallback(op, stack);
  } else {
    run_and_time(op, stack, facts);
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

// What is computed at once is never overwritten too early by another stream.
void record_stream(at::Tensor&, c10::Stream) {}

// Only what the fallback cannot do: make memory, move it, look at it in another shape.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("record_stream", TORCH_FN(record_stream));
  library.impl("resize_", TORCH_FN(at::native::resize_));
  library.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
}

// For these torch has a default that calls many operators, or that says there is none, and takes
// it before the fallback. CUDA has one kernel for each.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  for (const char* name :
       {"_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl",
        "convolution_overrideable", "convolution_backward_overrideable",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_fused_attention_overrideable_backward"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

// Fills of the `_foreach_` operators: called by the Python side if time is simulated, because
// without it one call or many make no difference but to the tests that count them.
void join_foreach_kernels() {
  static torch::Library library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name.starts_with("aten::_foreach_")) {
      auto name = op.name.substr(6) + (op.overload_name.empty() ? "" : "." + op.overload_name);
      library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
    }
  }
}

// Python's way to the bytes of a tensor, for the collectives.
TORCH_LIBRARY(fakegpu, library) {
  library.def("host_view(Tensor(a) tensor) -> Tensor(a)");
}
TORCH_LIBRARY_IMPL(fakegpu, PrivateUse1, library) {
  library.impl("host_view", TORCH_FN(view_from_host));
}

} // namespace
