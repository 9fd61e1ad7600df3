// What does an operator cost the device, and does the host wait for its result?

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "timeline.h"

namespace {

// Tensors of a value: itself, or those in its list.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(value.toTensor());
    }
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorList()) {
      if (each.defined()) {
        visit(each);
      }
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorList()) {
      if (each && each->defined()) {
        visit(*each);
      }
    }
  }
}

using Arguments = c10::ArrayRef<c10::IValue>;
using Flops = double (*)(Arguments, const at::Tensor& result);

double of_product(const at::Tensor& left, const at::Tensor& right) {
  return 2.0 * left.numel() * right.size(-1);
}

// Multiplications and additions for one number of the larger side of a convolution.
double of_kernel(const at::Tensor& weight) {
  return 2.0 * weight.numel() / weight.size(0);
}

double of_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const double pairs = static_cast<double>(query.numel()) / query.size(-1) * key.size(-2);
  return 2.0 * pairs * (query.size(-1) + value.size(-1));
}

const std::unordered_map<std::string_view, Flops>& flops_by_name() {
  static const auto* const table = new std::unordered_map<std::string_view, Flops>{
      {"aten::mm", [](Arguments a, const at::Tensor&) {
         return of_product(a[0].toTensor(), a[1].toTensor());
       }},
      {"aten::addmm", [](Arguments a, const at::Tensor&) {
         return of_product(a[1].toTensor(), a[2].toTensor());
       }},
      {"aten::mv", [](Arguments a, const at::Tensor&) { return 2.0 * a[0].toTensor().numel(); }},
      {"aten::convolution_overrideable", [](Arguments a, const at::Tensor& result) {
         const auto& larger = a[6].toBool() ? a[0].toTensor() : result;
         return larger.numel() * of_kernel(a[1].toTensor());
       }},
      {"aten::convolution_backward_overrideable", [](Arguments a, const at::Tensor&) {
         const auto& larger = a[6].toBool() ? a[1].toTensor() : a[0].toTensor();
         const auto wanted = a[9].toBoolList();
         return larger.numel() * of_kernel(a[2].toTensor()) * (wanted[0] + wanted[1]);
       }},
      {"aten::_scaled_dot_product_fused_attention_overrideable",
       [](Arguments a, const at::Tensor&) {
         return of_attention(a[0].toTensor(), a[1].toTensor(), a[2].toTensor());
       }},
      // Five products instead of two: the scores are computed again.
      {"aten::_scaled_dot_product_fused_attention_overrideable_backward",
       [](Arguments a, const at::Tensor&) {
         return 2.5 * of_attention(a[1].toTensor(), a[2].toTensor(), a[3].toTensor());
       }},
  };
  return *table;
}

// The size of their result, or the result itself, is a value that the host must have.
const std::unordered_set<std::string_view> kRead = {
    "aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select",
    "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
    "aten::repeat_interleave"};

struct Facts {
  int32_t name;
  Kind kind;
  Flops flops;
  bool reads, indexes, puts, is_fused;
};

const Facts& facts_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, Facts> known;
  const auto* const schema = &op.schema();
  const auto found = known.find(schema);
  if (found != known.end()) {
    return found->second;
  }
  const std::string& name = schema->name();
  const auto& table = flops_by_name();
  // bmm and baddbmm are mm and addmm of many matrices at once.
  const auto plain = name == "aten::bmm" ? "aten::mm" : name == "aten::baddbmm" ? "aten::addmm" : name;
  const auto flops = table.find(plain);
  // How `.item()` shows in a trace of CUDA.
  const bool is_item = name == "aten::_local_scalar_dense";
  const Facts facts{
      timeline().name(is_item ? "Memcpy DtoH (Device -> Pinned)" : name),
      is_item ? kToHost : kKernel,
      flops == table.end() ? nullptr : flops->second,
      kRead.count(name) > 0,
      name.starts_with("aten::index") || name.starts_with("aten::_index_put"),
      name.find("index_put") != std::string::npos,
      name.starts_with("aten::_fused_")};
  return known.emplace(schema, facts).first->second;
}

// A mask as an index is turned into positions, whose number the host must know, except where one
// value is put in all of them.
bool host_waits(const Facts& facts, Arguments arguments) {
  if (!facts.indexes) {
    return facts.reads;
  }
  bool by_mask = false;
  if (arguments.size() > 1 && arguments[1].isOptionalTensorList()) {
    for_each_tensor(arguments[1], [&](const at::Tensor& index) {
      by_mask |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    });
  }
  return by_mask && !(facts.puts && arguments[2].toTensor().numel() == 1);
}

double rate_of(at::ScalarType type) {
  const auto size = c10::elementSize(type);
  return times.flops * (size == 2 ? times.half : size == 8 ? times.full : 1.0);
}

// cpu_fallback would move them all to the host, and nobody would notice what CUDA refuses.
void refuse_mixed_devices(const Facts& facts, Arguments arguments) {
  if (!facts.is_fused) {
    return;
  }
  std::optional<c10::Device> first;
  for (const auto& argument : arguments) {
    if (!argument.isTensorList()) {
      continue;
    }
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      first = first.value_or(tensor.device());
      TORCH_CHECK(
          *first == tensor.device(),
          "Expected all tensors to be on the same device, but found at least two devices, ",
          *first, " and ", tensor.device(), "!");
    });
  }
}

} // namespace
