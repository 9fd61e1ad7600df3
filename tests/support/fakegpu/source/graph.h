// What does a captured graph do? It calls its operators again, and they follow each other without
// a launch between them. While it is captured, nothing may wait for the device.

#pragma once

#include <ATen/core/GraphImplInterface.h>
#include <ATen/core/Tensor.h>

#include <cstring>
#include <functional>
#include <unordered_map>
#include <vector>

#include "timeline.h"

namespace {

class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs&) {}

  static Graph& current() {
    return *open_;
  }

  void capture_begin(at::MempoolId_t, at::GraphCaptureMode) override {
    TORCH_CHECK(!capturing, "fakegpu error: a graph is being captured already");
    reset();
    open_ = this;
    capturing = true;
  }

  // Capturing computes nothing: what the operators changed becomes what it was.
  void capture_end() override {
    capturing = false;
    for (auto& [data, bytes] : before_) {
      std::memcpy(data, bytes.data(), bytes.size());
    }
    before_.clear();
  }

  void instantiate() override {}

  void replay() override {
    for (const auto& call : calls_) {
      call.again();
      if (simulated) {
        timeline().launch(call.place, call.work);
      }
    }
  }

  void reset() override {
    calls_.clear();
    before_.clear();
  }

  at::MempoolId_t pool() const override {
    return {0, 0};
  }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}

  void keep(const at::Tensor& changed) {
    auto* const data = static_cast<char*>(changed.storage().mutable_data());
    before_.try_emplace(data, data, data + changed.storage().nbytes());
  }

  void add(std::function<void()> again, Place place, const Work& work) {
    calls_.push_back({std::move(again), place, work});
  }

 private:
  struct Call {
    std::function<void()> again;
    Place place;
    Work work;
  };

  inline static Graph* open_ = nullptr;
  std::vector<Call> calls_;
  std::unordered_map<char*, std::vector<char>> before_;
};

} // namespace

namespace at {
// The name under which torch looks for it, once the device has its own.
REGISTER_GRAPH_IMPL(FAKEGPU, Graph)
} // namespace at
