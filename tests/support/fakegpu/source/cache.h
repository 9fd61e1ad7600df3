// Which bytes of the device are taken, and what does that cost? The accounts of one device.
//
// Without simulated time every byte goes back at once. With it, memory comes from the driver in
// segments, as CUDA's caching allocator takes it: pieces are split off, joined again and kept for
// the stream that used them, so memory can be free and yet too scattered to be of use.

#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdlib>
#include <iterator>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "timeline.h"

namespace {

constexpr int64_t kMiB = 1 << 20;

struct Segment {
  struct Part {
    int64_t size;
    bool is_free;
  };
  int64_t size;
  c10::StreamId stream;
  bool is_small;
  std::map<int64_t, Part> parts; // by where they begin
};

struct Piece {
  int64_t nbytes;
  Segment* segment;
  int64_t begin;
};

bool segments_expand() {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const char* settings = std::getenv(name);
    if (settings && std::string(settings).find("expandable_segments:True") != std::string::npos) {
      return true;
    }
  }
  return false;
}

class Cache {
 public:
  c10::CachingAllocator::Stat allocated, reserved;
  int64_t limit = 0; // set by the Python side before the first tensor
  int64_t refusals = 0, retries = 0, driver_calls = 0;

  // Nothing if the limit forbids it.
  std::optional<Piece> take(int64_t nbytes, c10::StreamId stream) {
    if (!simulated) {
      return take_bytes(nbytes, nbytes);
    }
    const auto rounded = round_up(nbytes, 512);
    if (expands_) {
      return take_bytes(rounded, round_up(rounded, 2 * kMiB));
    }
    const bool is_small = rounded <= kMiB;
    auto found = free_.lower_bound({is_small, stream, rounded, nullptr, 0});
    if (found == free_.end() || std::get<0>(*found) != is_small ||
        std::get<1>(*found) != stream) {
      const auto size = is_small ? 2 * kMiB
          : rounded < 10 * kMiB ? 20 * kMiB
                                : round_up(rounded, 2 * kMiB);
      if (reserved.current + size > limit) {
        return std::nullopt;
      }
      ++driver_calls;
      reserved.increase(size);
      auto& segment = segments_.emplace_back(Segment{size, stream, is_small, {{0, {size, true}}}});
      found = free_.insert({is_small, stream, size, &segment, 0}).first;
    }
    return split(found, rounded);
  }

  void release(const Piece& piece) {
    allocated.decrease(piece.nbytes);
    if (!piece.segment) {
      if (!simulated) {
        reserved.decrease(piece.nbytes);
      }
      return;
    }
    auto& parts = piece.segment->parts;
    auto part = parts.find(piece.begin);
    part->second.is_free = true;
    if (const auto next = std::next(part); next != parts.end() && next->second.is_free) {
      free_.erase(key(*piece.segment, next));
      part->second.size += next->second.size;
      parts.erase(next);
    }
    if (part != parts.begin() && std::prev(part)->second.is_free) {
      const auto before = std::prev(part);
      free_.erase(key(*piece.segment, before));
      before->second.size += part->second.size;
      parts.erase(part);
      part = before;
    }
    free_.insert(key(*piece.segment, part));
  }

  // Segments in which nothing is used go back to the driver.
  void give_back() {
    for (auto segment = segments_.begin(); segment != segments_.end();) {
      const auto first = segment->parts.begin();
      if (segment->parts.size() > 1 || !first->second.is_free) {
        ++segment;
        continue;
      }
      free_.erase(key(*segment, first));
      reserved.decrease(segment->size);
      ++driver_calls;
      segment = segments_.erase(segment);
    }
    if (segments_.empty() && expands_) {
      reserved.decrease(reserved.current - allocated.current);
    }
  }

 private:
  using Key = std::tuple<bool, c10::StreamId, int64_t, Segment*, int64_t>;
  using Parts = std::map<int64_t, Segment::Part>;

  static int64_t round_up(int64_t nbytes, int64_t unit) {
    return (nbytes + unit - 1) / unit * unit;
  }

  static Key key(Segment& segment, Parts::iterator part) {
    return {segment.is_small, segment.stream, part->second.size, &segment, part->first};
  }

  // Memory without places: what is free can always be used.
  std::optional<Piece> take_bytes(int64_t nbytes, int64_t growth) {
    const auto missing = allocated.current + nbytes - reserved.current;
    if (allocated.current + nbytes > limit) {
      return std::nullopt;
    }
    if (missing > 0) {
      reserved.increase(std::min(std::max(missing, growth), limit - reserved.current));
      ++driver_calls;
    }
    allocated.increase(nbytes);
    return Piece{nbytes, nullptr, 0};
  }

  Piece split(std::set<Key>::iterator found, int64_t nbytes) {
    auto* const segment = std::get<3>(*found);
    const auto begin = std::get<4>(*found);
    free_.erase(found);
    auto& part = segment->parts[begin];
    const auto rest = part.size - nbytes;
    if (segment->is_small ? rest >= 512 : rest > kMiB) {
      part.size = nbytes;
      const auto next = segment->parts.emplace(begin + nbytes, Segment::Part{rest, true}).first;
      free_.insert(key(*segment, next));
    }
    part.is_free = false;
    allocated.increase(part.size);
    return {part.size, segment, begin};
  }

  const bool expands_ = segments_expand();
  std::list<Segment> segments_;
  std::set<Key> free_;
};

} // namespace
