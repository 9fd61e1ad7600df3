// Where do the fake GPU's bytes live, and who counts them? Two allocators over host memory.

#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/file.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_set>

#include "cache.h"
#include "device.h"

namespace {

constexpr size_t kAlignment = 64; // what the vectorised CPU kernels like best

void* allocate_host_bytes(size_t nbytes) {
  void* data = nullptr;
  TORCH_CHECK(
      posix_memalign(&data, kAlignment, nbytes) == 0,
      "the host itself has no ", nbytes, " bytes left for fakegpu");
  return data;
}

// The first memory of a process is its context. In exclusive mode the one that has it holds a lock
// until it ends.
void open_context() {
  static const bool is_open = [] {
    const char* path = std::getenv("FAKEGPU_EXCLUSIVE");
    return path == nullptr || flock(open(path, O_RDWR | O_CREAT, 0600), LOCK_EX | LOCK_NB) == 0;
  }();
  TORCH_CHECK(is_open, "fakegpu error: all fakegpu-capable devices are busy or unavailable");
}

// ---------------------------------------------------------------------------- device memory

struct Block {
  void* data;
  c10::DeviceIndex device;
  Piece piece;
};

void free_block(void* context);

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device device(kType, current_device);
    if (nbytes == 0) {
      return {nullptr, device};
    }
    auto* block = new Block{nullptr, device.index(), reserve(device.index(), nbytes)};
    try {
      block->data = allocate_host_bytes(nbytes);
      return {block->data, block, &free_block, device};
    } catch (...) {
      release(*block);
      delete block;
      throw;
    }
  }

  void release(const Block& block) {
    std::lock_guard<std::mutex> lock(mutex_);
    caches_[block.device].release(block.piece);
  }

  void set_limit(int64_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& cache : caches_) {
      cache.limit = nbytes;
    }
  }

  void copy_data(void* to, const void* from, size_t nbytes) const override {
    std::memcpy(to, from, nbytes);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto& cache = caches_[device];
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto total = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    stats.allocated_bytes[total] = cache.allocated;
    stats.reserved_bytes[total] = cache.reserved;
    stats.num_ooms = cache.refusals;
    stats.num_alloc_retries = cache.retries;
    stats.num_device_alloc = cache.driver_calls;
    return stats;
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    caches_[device].allocated.reset_peak();
    caches_[device].reserved.reset_peak();
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& cache = caches_[device];
    cache.allocated.reset_accumulated();
    cache.reserved.reset_accumulated();
    cache.refusals = cache.retries = cache.driver_calls = 0;
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto& cache = caches_[device];
    return {std::max<int64_t>(cache.limit - cache.reserved.current, 0), cache.limit};
  }

  bool initialized() override {
    return true;
  }

  void emptyCache(c10::MempoolId_t) override {
    Instant idle{};
    for (c10::DeviceIndex device = 0; device < device_count; ++device) {
      idle = std::max(idle, timeline().end_of_all(device));
    }
    timeline().wait(idle);
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& cache : caches_) {
      cache.give_back();
    }
  }

  void recordStream(const c10::DataPtr&, c10::Stream) override {}

 private:
  Piece reserve(c10::DeviceIndex device, size_t nbytes) {
    open_context();
    std::lock_guard<std::mutex> lock(mutex_);
    auto& cache = caches_[device];
    const auto before = cache.driver_calls;
    auto piece = cache.take(nbytes, current_streams[device]);
    if (!piece) {
      // As CUDA does: nothing may be in use while memory goes back to the driver.
      timeline().wait(timeline().end_of_all(device));
      ++cache.retries;
      cache.give_back();
      piece = cache.take(nbytes, current_streams[device]);
    }
    Timeline::pass(Clock::now() + duration_of((cache.driver_calls - before) * times.segment));
    if (!piece) {
      ++cache.refusals;
      TORCH_CHECK_WITH(
          OutOfMemoryError, false,
          "fakegpu out of memory. Tried to allocate ", nbytes, " bytes; ",
          cache.allocated.current, " of ", cache.limit, " bytes are in use.");
    }
    return *piece;
  }

  std::mutex mutex_;
  std::array<Cache, kMostDevices> caches_;
};

// Never destroyed: the interpreter frees its last tensors after static destructors have run.
DeviceMemory& memory() {
  static auto* const the_memory = new DeviceMemory();
  return *the_memory;
}

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  memory().release(*block);
  std::free(block->data);
  delete block;
}

REGISTER_ALLOCATOR(kType, &memory());

// ------------------------------------------------------------------ pinned (page-locked) memory

// Ordinary host memory that remembers its addresses, so that Tensor.is_pinned tells the truth.
class PinnedMemory final : public at::HostAllocator {
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

  // Values move at once, so memory is free to be used again as soon as it is released.
  bool record_event(void*, void*, c10::Stream) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    return {};
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

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

namespace at {
REGISTER_HOST_ALLOCATOR(kType, &PinnedMemory::instance());
} // namespace at
