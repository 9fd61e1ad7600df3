// How does torch switch devices and streams, record events and wait for them?

#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <utility>

#include "memory.h"
#include "timeline.h"

namespace {

std::atomic<c10::StreamId> last_stream{0};

// Without simulated time every stream is idle: a wait is over at once, and the host clock at
// `record` is the device time of the event.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kType;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return device_count;
  }
  c10::Device getDevice() const override {
    return {kType, current_device};
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(current_device, resolve(device).index())};
  }
  void setDevice(c10::Device device) const override {
    current_device = resolve(device).index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index() < 0 ? current_device : device.index();
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    timeline().wait(timeline().end_of_all(device < 0 ? current_device : device));
  }

  c10::Stream getStream(c10::Device device) const override {
    const auto index = resolve(device).index();
    return stream({index, current_streams[index]});
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream({resolve(device).index(), 0});
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream({resolve(device).index(), ++last_stream});
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto index = next.device_index();
    return stream({index, std::exchange(current_streams[index], next.id())});
  }
  bool queryStream(const c10::Stream& stream) const override {
    return timeline().end_of(place(stream)) <= Clock::now();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    timeline().wait(timeline().end_of(place(stream)));
  }
  bool isStreamCapturing(const c10::Stream&) const override {
    return capturing;
  }

  void record(
      void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Instant();
    }
    *static_cast<Instant*>(*event) = timeline().end_of(place(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) {
      timeline().follow(place(stream), *static_cast<Instant*>(event));
    }
  }
  bool queryEvent(void* event) const override {
    return !event || *static_cast<Instant*>(event) <= Clock::now();
  }
  void synchronizeEvent(void* event) const override {
    if (event) {
      timeline().wait(*static_cast<Instant*>(event));
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Instant*>(event);
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    const std::chrono::duration<double, std::milli> milliseconds =
        *static_cast<Instant*>(second) - *static_cast<Instant*>(first);
    return milliseconds.count();
  }

 private:
  static c10::Stream stream(Place place) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, place.device), place.stream);
  }
  static Place place(const c10::Stream& stream) {
    return {stream.device_index(), stream.id()};
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
    return device_count;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device;
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    current_device = resolve({kType, device}).index();
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_device, resolve({kType, device}).index());
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
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

} // namespace
