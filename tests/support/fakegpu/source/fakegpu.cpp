// What is the least that torch accepts as an accelerator, and what makes it behave like one?
//
// Devices of type PrivateUse1. Their memory is host memory with another label, their kernels are
// the CPU kernels on copies. What is real is the bookkeeping: every tensor is counted against a
// byte limit, and an allocation beyond it raises the same exception that a full GPU raises. If
// asked for, there is time too: work takes as long as it would on a device of a given speed,
// and the host goes on meanwhile.
//
// One translation unit, without Python or pybind11 headers and without any header that pulls in
// all of ATen: most of the time to compile goes into torch's headers. Python reaches the functions
// at the end through ctypes.

#define AT_PER_OPERATOR_HEADERS // or ATen's own headers include every operator there is

#include "autocast.h"
#include "kernels.h"
#include "operators.h"

namespace {
Instant instant_of(double seconds) {
  return Instant(duration_of(seconds));
}
} // namespace

extern "C" {

void fakegpu_set_limit_bytes(int64_t nbytes) {
  memory().set_limit(nbytes);
}
void fakegpu_set_devices(int count) {
  device_count = count;
}
void fakegpu_simulate(const Times* speeds) {
  times = *speeds;
  simulated = true;
  join_foreach_kernels();
}

int64_t fakegpu_kernels() {
  return timeline().kernels();
}
double fakegpu_busy_seconds(int device) {
  return timeline().busy(device);
}
int64_t fakegpu_waits(double* seconds) {
  const auto [count, waited] = timeline().waits();
  *seconds = waited;
  return count;
}
int64_t fakegpu_read_log(int64_t first, Entry* entries, int64_t most) {
  return timeline().read(first, entries, most);
}
int64_t fakegpu_read_waits(double since, Wait* entries, int64_t most) {
  return timeline().read_waits(since, entries, most);
}
const char* fakegpu_name(int32_t name) {
  return timeline().text_of(name);
}

double fakegpu_end_of_stream(int device, int64_t stream) {
  return seconds_of(timeline().end_of({static_cast<c10::DeviceIndex>(device), stream}));
}
void fakegpu_collective(
    int device, int64_t stream, const char* name, double bytes, double launched, double start,
    double end) {
  timeline().collective(
      {static_cast<c10::DeviceIndex>(device), stream},
      {timeline().name(name), kCollective, end - start, bytes, 0}, instant_of(launched),
      instant_of(start), instant_of(end));
}

} // extern "C"
