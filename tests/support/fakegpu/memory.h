// Where do the fake GPU's bytes live, and who counts them? Two allocators over host memory.

#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_set>

namespace {

const c10::Device kDevice(c10::DeviceType::PrivateUse1, 0);
constexpr size_t kAlignment = 64; // what the vectorised CPU kernels like best

void check_is_ours(c10::Device device) {
  TORCH_CHECK(
      device.index() <= 0, "there is one fakegpu, so ", device, " does not exist; use fakegpu:0");
}

void* allocate_host_bytes(size_t nbytes) {
  void* data = nullptr;
  TORCH_CHECK(
      posix_memalign(&data, kAlignment, nbytes) == 0,
      "the host itself has no ", nbytes, " bytes left for fakegpu");
  return data;
}

// ---------------------------------------------------------------------------- device memory

struct Block {
  void* data;
  size_t nbytes;
};

void free_block(void* context);

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) {
      return {nullptr, kDevice};
    }
    reserve(nbytes);
    try {
      auto* block = new Block{allocate_host_bytes(nbytes), nbytes};
      return {block->data, block, &free_block, kDevice};
    } catch (...) {
      release(nbytes);
      throw;
    }
  }

  void release(size_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes_.decrease(nbytes);
  }

  void set_limit(int64_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    limit_ = nbytes;
  }

  void copy_data(void* to, const void* from, size_t nbytes) const override {
    std::memcpy(to, from, nbytes);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> lock(mutex_);
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto total = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    stats.allocated_bytes[total] = bytes_;
    stats.reserved_bytes[total] = bytes_; // nothing is cached, so both are the same
    stats.num_ooms = refusals_;
    return stats;
  }

  void resetPeakStats(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes_.reset_peak();
  }

  void resetAccumulatedStats(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> lock(mutex_);
    bytes_.reset_accumulated();
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return {std::max<int64_t>(limit_ - bytes_.current, 0), limit_};
  }

  bool initialized() override {
    return true;
  }

  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

 private:
  void reserve(size_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (bytes_.current + static_cast<int64_t>(nbytes) > limit_) {
      ++refusals_;
      TORCH_CHECK_WITH(
          OutOfMemoryError, false,
          "fakegpu out of memory. Tried to allocate ", nbytes, " bytes; ",
          bytes_.current, " of ", limit_, " bytes are in use.");
    }
    bytes_.increase(nbytes);
  }

  std::mutex mutex_;
  c10::CachingAllocator::Stat bytes_;
  int64_t limit_ = 0; // set by the Python side before the first tensor
  int64_t refusals_ = 0;
};

// Never destroyed: the interpreter frees its last tensors after static destructors have run.
DeviceMemory& memory() {
  static auto* const the_memory = new DeviceMemory();
  return *the_memory;
}

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  memory().release(block->nbytes);
  std::free(block->data);
  delete block;
}

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory());

// ------------------------------------------------------------------ pinned (page-locked) memory

// Ordinary host memory that remembers its addresses, so that Tensor.is_pinned tells the truth.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) {
      return {nullptr, c10::Device(c10::DeviceType::CPU)};
    }
    void* data = allocate_host_bytes(nbytes);
    std::lock_guard<std::mutex> lock(mutex_);
    addresses_.insert(data);
    return {data, data, &unpin, c10::Device(c10::DeviceType::CPU)};
  }

  bool contains(const void* data) {
    std::lock_guard<std::mutex> lock(mutex_);
    return addresses_.count(data) > 0;
  }

  void copy_data(void* to, const void* from, size_t nbytes) const override {
    std::memcpy(to, from, nbytes);
  }

  static PinnedMemory& instance() {
    static auto* const the_memory = new PinnedMemory();
    return *the_memory;
  }

 private:
  static void unpin(void* data) {
    {
      std::lock_guard<std::mutex> lock(instance().mutex_);
      instance().addresses_.erase(data);
    }
    std::free(data);
  }

  std::mutex mutex_;
  std::unordered_set<const void*> addresses_;
};

} // namespace
