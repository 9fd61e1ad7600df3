// When is which fake GPU busy? Results are computed by the host at once; what is simulated is time.
//
// Each stream has a moment until which it is busy, and whoever waits for it sleeps until then.
// Kernels of all streams share one engine of their device, copies have one in each direction, so
// work on two streams overlaps only where a GPU's would. All moments are those of the host's
// steady clock, which is Python's time.perf_counter, in every process of the machine.

#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device.h"

namespace {

using Clock = std::chrono::steady_clock;
using Instant = Clock::time_point;

double seconds_of(Instant moment) {
  return std::chrono::duration<double>(moment.time_since_epoch()).count();
}
Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// What the Python side sets, before the first tensor, if time is simulated at all.
struct Times {
  double kernel; // seconds of every kernel and copy, whatever its size
  double flops; // per second, in float32
  double half; // times as many in 16 bits
  double full; // times as many in 64 bits
  double bytes; // per second, in the device's memory
  double link; // per second, between host and device
  double pageable; // of that, from memory that is not pinned
  double segment; // seconds to get memory from the driver, or to give it back
};
Times times{};
bool simulated = false;

// As deep as CUDA's; then a launch waits until there is room.
constexpr size_t kQueue = 1024;
// Older kernels are forgotten, except for the time that they took.
constexpr size_t kLogged = 1 << 20;
// Sleeping may end this much too late, so the end of a wait is spent awake.
constexpr std::chrono::microseconds kTimerSlack(80);

enum Kind : int32_t { kKernel, kToDevice, kToHost, kCollective };

// The layout that the Python side reads.
struct Entry {
  int64_t number;
  double launched, start, end, bytes, flops;
  int32_t device, stream, name, kind, thread;
};
struct Wait {
  double start, end;
  int64_t thread;
};

struct Work {
  int32_t name;
  Kind kind;
  double seconds, bytes, flops;
};

// Its busy intervals in the future, in order. What is ready later leaves a gap for others.
class Engine {
 public:
  Instant place(Instant ready, Clock::duration length) {
    const auto now = Clock::now();
    while (!busy_.empty() && busy_.front().second <= now) {
      busy_.pop_front();
    }
    auto start = ready;
    auto next = busy_.begin();
    for (; next != busy_.end() && start + length > next->first; ++next) {
      start = std::max(start, next->second);
    }
    if (next != busy_.begin() && std::prev(next)->second == start) {
      std::prev(next)->second = start + length;
    } else {
      busy_.insert(next, {start, start + length});
    }
    return start;
  }

 private:
  std::deque<std::pair<Instant, Instant>> busy_;
};

// As a profiler numbers them.
int32_t thread_number() {
  thread_local const auto number = static_cast<int32_t>(syscall(SYS_gettid));
  return number;
}

// Into a graph. As with CUDA's default, no thread may then do what a graph cannot hold.
std::atomic<bool> capturing{false};
constexpr const char* kCapturing =
    "fakegpu error: operation not permitted when stream is capturing";

class Timeline {
 public:
  void launch(Place place, const Work& work) {
    make_room(place.device);
    std::lock_guard<std::mutex> lock(mutex_);
    const auto now = Clock::now();
    auto& until = until_[place];
    const auto length = duration_of(work.seconds);
    auto& engine = engines_[place.device][work.kind];
    const auto start = engine.place(std::max(until, now), length);
    until = start + length;
    queued_[place.device].push_back(until);
    log(place, work, now, start, until);
  }

  // A collective ends when the slowest rank and the link allow it, which only Python knows.
  void collective(Place place, const Work& work, Instant launched, Instant start, Instant end) {
    std::lock_guard<std::mutex> lock(mutex_);
    until_[place] = std::max(until_[place], end);
    log(place, work, launched, start, end);
  }

  Instant end_of(Place place) {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::max(until_[place], Clock::now());
  }

  Instant end_of_all(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto last = Clock::now();
    for (const auto& [place, until] : until_) {
      last = place.device == device ? std::max(last, until) : last;
    }
    return last;
  }

  void follow(Place place, Instant moment) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& until = until_[place];
    until = std::max(until, moment);
  }

  // The host waits.
  void wait(Instant moment) {
    TORCH_CHECK(!capturing, kCapturing);
    const auto began = Clock::now();
    pass(moment);
    std::lock_guard<std::mutex> lock(mutex_);
    const auto ended = Clock::now();
    ++waits_;
    waited_ += std::chrono::duration<double>(ended - began).count();
    if (simulated) {
      waiting_.push_back({seconds_of(began), seconds_of(ended), thread_number()});
      if (waiting_.size() > kLogged) {
        waiting_.pop_front();
      }
    }
  }

  int32_t name(const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto [found, is_new] = numbers_.emplace(text, static_cast<int32_t>(names_.size()));
    if (is_new) {
      names_.push_back(&found->first);
    }
    return found->second;
  }

  const char* text_of(int32_t name) {
    std::lock_guard<std::mutex> lock(mutex_);
    return names_.at(name)->c_str();
  }

  int64_t kernels() {
    std::lock_guard<std::mutex> lock(mutex_);
    return launched_;
  }

  std::pair<int64_t, double> waits() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {waits_, waited_};
  }

  // Copies what was logged from number `first` on, and returns how many that is.
  int64_t read(int64_t first, Entry* entries, int64_t most) {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t count = 0;
    const int64_t oldest = log_.empty() ? 0 : log_.front().number;
    for (size_t i = std::max<int64_t>(first - oldest, 0); i < log_.size() && count < most; ++i) {
      entries[count++] = log_[i];
    }
    return count;
  }

  // The waits that ended after a moment, from the newest on.
  int64_t read_waits(double since, Wait* entries, int64_t most) {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t count = 0;
    for (auto wait = waiting_.rbegin(); wait != waiting_.rend() && count < most; ++wait) {
      if (wait->end < since) {
        break;
      }
      entries[count++] = *wait;
    }
    return count;
  }

  // Seconds until now in which a stream of the device had something to do.
  double busy(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex_);
    return forgotten_[device] + covered(device, log_.size(), seconds_of(Clock::now()));
  }

  static void pass(Instant moment) {
    if (moment - Clock::now() > kTimerSlack) {
      std::this_thread::sleep_until(moment - kTimerSlack);
    }
    while (Clock::now() < moment) {
      std::this_thread::yield();
    }
  }

 private:
  void make_room(c10::DeviceIndex device) {
    Instant room{};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto& queued = queued_[device];
      const auto now = Clock::now();
      while (!queued.empty() && queued.front() <= now) {
        queued.pop_front();
      }
      if (queued.size() >= kQueue) {
        room = queued[queued.size() - kQueue];
      }
    }
    pass(room);
  }

  void log(Place place, const Work& work, Instant launched, Instant start, Instant end) {
    if (log_.size() >= kLogged) {
      const auto half = kLogged / 2;
      for (c10::DeviceIndex device = 0; device < device_count; ++device) {
        forgotten_[device] += covered(device, half, seconds_of(end));
      }
      log_.erase(log_.begin(), log_.begin() + half);
    }
    log_.push_back(
        {launched_++, seconds_of(launched), seconds_of(start), seconds_of(end), work.bytes,
         work.flops, place.device, static_cast<int32_t>(place.stream), work.name, work.kind,
         thread_number()});
  }

  double covered(c10::DeviceIndex device, size_t count, double now) const {
    std::vector<std::pair<double, double>> intervals;
    for (size_t i = 0; i < count; ++i) {
      if (log_[i].device == device) {
        intervals.emplace_back(log_[i].start, std::min(log_[i].end, now));
      }
    }
    std::sort(intervals.begin(), intervals.end());
    double total = 0, until = 0;
    for (const auto& [start, end] : intervals) {
      total += std::max(end - std::max(start, until), 0.0);
      until = std::max(until, end);
    }
    return total;
  }

  std::mutex mutex_;
  std::unordered_map<Place, Instant, PlaceHash> until_;
  std::array<std::array<Engine, 4>, kMostDevices> engines_;
  std::array<std::deque<Instant>, kMostDevices> queued_;
  std::array<double, kMostDevices> forgotten_{};
  std::unordered_map<std::string, int32_t> numbers_;
  std::vector<const std::string*> names_;
  std::deque<Entry> log_;
  std::deque<Wait> waiting_;
  int64_t launched_ = 0, waits_ = 0;
  double waited_ = 0;
};

// Never destroyed: other threads may still work when static destructors run.
Timeline& timeline() {
  static auto* const the_timeline = new Timeline();
  return *the_timeline;
}

} // namespace
