// Which fake GPUs are there, and which one does this thread use?

#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <array>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kMostDevices = 8;

int device_count = 1; // set by the Python side before the first tensor
thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kMostDevices> current_streams{};

// `fakegpu` alone means the device that this thread uses.
c10::Device resolve(c10::Device device) {
  TORCH_CHECK(
      device.index() < device_count,
      device_count == 1 ? "there is one fakegpu, so " : "there are too few fakegpu: ",
      device, " does not exist; use fakegpu:0");
  return {kType, device.index() < 0 ? current_device : device.index()};
}

// Where work is put: a stream of a device.
struct Place {
  c10::DeviceIndex device;
  c10::StreamId stream;

  bool operator==(const Place&) const = default;

  static Place current(c10::DeviceIndex device) {
    return {device, current_streams[device]};
  }
};

struct PlaceHash {
  size_t operator()(const Place& place) const {
    return static_cast<size_t>(place.stream) * kMostDevices + place.device;
  }
};

} // namespace
