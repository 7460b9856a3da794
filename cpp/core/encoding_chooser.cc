#include "core/encoding_chooser.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace horoscale {
namespace {

// Communication is hidden if it blocks the program for at most this fraction of a step; choices aim
// at less.
constexpr double kHidden = 0.05;
constexpr double kAim = 0.02;
// A choice changes to more compression after this many consecutive steps that call for it. To less:
// Patience.
constexpr int kStepsForMore = 2;
// To compress less, this fraction of the time must suffice, and the choice must be milder by this
// factor.
constexpr double kRoom = 0.8;
constexpr double kMilder = 1.05;

// Buckets that send less measure the latency, larger ones the bandwidth.
constexpr double kSmallBytes = 4096;
constexpr double kLargeBytes = 8192;
// Of the time of a large bucket.
constexpr double kMostLatency = 0.9;
// Used until a small bucket has been measured.
constexpr double kUsualLatency = 0.2e-3;
// The minimum size that measures this rank's encoding speed.
constexpr int64_t kLeastCodedBytes = 64 << 10;
constexpr double kUsualCoding = 2e9;

// A tensor that was not used for this many steps is forgotten.
constexpr uint64_t kForgotten = 1000;
// Programs may use a new name for each call.
constexpr size_t kMostTensors = 65'536;

size_t LevelOf(const Encoding& encoding) {
  const auto found = std::find(kEncodingLevels.begin(), kEncodingLevels.end(), encoding);
  return static_cast<size_t>(found - kEncodingLevels.begin());
}

}  // namespace

void RecentMedian::Add(double value) { values_[count_++ % values_.size()] = value; }

double RecentMedian::Get() const {
  const size_t filled = std::min(count_, values_.size());
  if (filled == 0) return 0;
  std::array<double, 5> sorted = values_;
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(filled));
  return sorted[filled / 2];
}

Encoding EncodingChooser::Choose(std::string_view name, const Signature& signature, int priority,
                                 double now) {
  auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    if (tensors_.size() >= kMostTensors || signature.tensors.empty()) return {};
    found = tensors_.try_emplace(std::string(name)).first;
  }
  Tensor& tensor = found->second;
  int64_t elements = 0;
  for (const TensorSpec& spec : signature.tensors) elements += spec.NumElements();
  tensor.about.elements = elements;
  tensor.about.dtype = signature.tensors[0].dtype;
  tensor.about.most_error = signature.encoding.MostError();
  tensor.about.priority = priority;
  tensor.step = step_;
  const bool recurs = tensor.round == round_;
  if (recurs) ++round_;
  tensor.round = round_;
  tail_.OnReady(recurs, now);
  size_t level = tensor.level;
  while (tensor.about.errors.errors[level] > tensor.about.most_error) --level;
  if (level != tensor.level) {
    SetLevel(tensor, level);
    NoteChange(name, tensor, "the last encoding loses more than the bound");
  }
  return kEncodingLevels[level];
}

void EncodingChooser::SetLevel(Tensor& tensor, size_t level) {
  tensor.level = level;
  tensor.by_member.clear();
}

void EncodingChooser::NoteChange(std::string_view name, const Tensor& tensor,
                                 std::string_view why) {
  if (!keeps_changes_) return;
  changes_.push_back({std::string(name), kEncodingLevels[tensor.level], std::string(why)});
}

std::vector<EncodingChooser::Change> EncodingChooser::TakeChanges() {
  return std::exchange(changes_, {});
}

std::string EncodingChooser::Describe(double seconds, double exposed) const {
  const NetworkState network = Network();
  char text[128];
  std::snprintf(text, sizeof text, "exposed %.1f ms of %.1f, bandwidth %.1f MB/s, latency %.2f ms",
                exposed * 1e3, seconds * 1e3, network.bytes_per_second / 1e6,
                network.latency_seconds * 1e3);
  return text;
}

void EncodingChooser::OnError(std::string_view name, uint32_t member, const Encoding& encoding,
                              double error) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end() || LevelOf(encoding) != found->second.level) return;
  Tensor& tensor = found->second;
  tensor.by_member[member] = error;
  double worst = 0;
  for (const auto& [_, of_member] : tensor.by_member) worst = std::max(worst, of_member);
  tensor.about.errors.Measure(tensor.level, worst);
}

void EncodingChooser::OnBucket(const Bucket& bucket) {
  if (bucket.seconds <= 0) return;
  const double elements =
      static_cast<double>(bucket.bytes) / static_cast<double>(SizeOf(bucket.dtype));
  const double sent = elements * bucket.encoding.BytesPerElement(bucket.dtype);
  const double coding = std::min(bucket.coding_seconds, bucket.seconds);
  const double carried = bucket.seconds - coding;
  measured_.seconds += bucket.seconds;
  if (bucket.calls_back) {
    tail_.OnExecuted(bucket.seconds, bucket.ended_at);
  } else {
    measured_.exposed += bucket.exposed_seconds;
  }
  if (sent <= kSmallBytes) latency_.Add(carried);
  fitted_latency_.OnBucket(sent, carried);
  if (sent >= kLargeBytes) {
    const double latency = std::min(Network().latency_seconds, kMostLatency * carried);
    measured_.large_bytes += sent;
    measured_.large_seconds += carried - latency;
  }
  if (coding > 0 && bucket.bytes >= kLeastCodedBytes) {
    coding_.Add(static_cast<double>(bucket.bytes) / coding);
  }
}

NetworkState EncodingChooser::Network() const {
  const double fitted = fitted_latency_.seconds();
  const double latency = latency_.Get() > 0 ? latency_.Get() : fitted;
  const double coding = coding_.Get();
  return {bandwidth_.Get(), latency > 0 ? latency : kUsualLatency,
          coding > 0 ? coding : kUsualCoding};
}

void EncodingChooser::OnStep(double seconds) {
  measured_.exposed += tail_.Take();
  if (measured_.seconds > 0 && seconds > 0) {
    if (measured_.large_seconds > 0) {
      bandwidth_.Add(measured_.large_bytes / measured_.large_seconds);
    }
    if (IsUsed()) {
      Replan(seconds);
      Forget();
    }
  }
  measured_ = {};
  ++step_;
}

void EncodingChooser::Replan(double seconds) {
  const double exposed = std::min(measured_.exposed, seconds);
  const double hidden = std::max(measured_.seconds - exposed, 0.0);
  const double computed = std::max(seconds - exposed, 1e-9);
  const bool is_hidden = exposed <= kHidden * seconds;
  // If nothing is exposed, more could have been hidden than there was.
  hidden_share_ = is_hidden ? std::max(hidden_share_, std::min(hidden / computed, 1.0))
                            : std::min(hidden / computed, 1.0);
  const NetworkState network = Network();
  std::vector<std::pair<const std::string, Tensor>*> present;
  std::vector<AdaptiveTensor> tensors;
  double now = 0;
  for (auto& named : tensors_) {
    const Tensor& tensor = named.second;
    if (tensor.step != step_ && tensor.step + 1 != step_) continue;
    present.push_back(&named);
    tensors.push_back(tensor.about);
    now += ShareSeconds(tensor.about, tensor.level, network);
  }
  const double others = std::max(measured_.seconds - now, 0.0);
  const double room = hidden_share_ * computed + kAim * seconds;
  const std::vector<size_t> levels =
      ChooseLevels(tensors, network, (is_hidden ? kRoom * room : room) - others);
  double then = 0;
  for (size_t i = 0; i < levels.size(); ++i) then += ShareSeconds(tensors[i], levels[i], network);
  too_little_ = !is_hidden && then * kMilder < now ? too_little_ + 1 : 0;
  too_much_ = is_hidden && then > now * kMilder ? too_much_ + 1 : 0;
  const double bandwidth = network.bytes_per_second;
  const bool more = too_little_ >= kStepsForMore;
  if (!more && too_much_ < patience_.Steps(bandwidth)) return;
  more ? patience_.OnMore(step_, bandwidth) : patience_.OnLess(step_);
  const std::string why = keeps_changes_ ? Describe(seconds, exposed) : std::string();
  for (size_t i = 0; i < levels.size(); ++i) {
    Tensor& tensor = present[i]->second;
    if (tensor.level == levels[i]) continue;
    SetLevel(tensor, levels[i]);
    NoteChange(present[i]->first, tensor, why);
  }
  too_little_ = too_much_ = 0;
}

void EncodingChooser::Forget() {
  if (step_ % kForgotten != 0) return;
  std::erase_if(tensors_,
                [&](const auto& entry) { return entry.second.step + kForgotten < step_; });
}

}  // namespace horoscale
