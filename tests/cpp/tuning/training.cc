#include "tuning/training.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace horoscale::tuning {
namespace {

constexpr uint32_t kMembers = 2;
constexpr double kForward = 1.0 / 3;         // of the computation
constexpr double kSoftwareLatency = 0.2e-3;  // of a bucket
constexpr double kCodingBytesPerSecond = 2e9;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::abort();
}

CoordinatorOptions OptionsOf(const Setting& setting, const Limits& limits) {
  CoordinatorOptions options;
  for (uint32_t i = 0; i < kMembers; ++i) options.ranks.push_back(static_cast<int>(i));
  options.spans_hosts = true;
  options.limits = limits;
  options.is_tuned = setting.searches;
  return options;
}

// What gradients typically lose (docs/compression.md).
double ErrorOf(const Encoding& encoding) {
  switch (encoding.kind) {
    case EncodingKind::kInt8:
      return 0.006;
    case EncodingKind::kInt4:
      return 0.1;
    case EncodingKind::kOneBit:
      return 1.2;
    default:
      return 5;
  }
}

}  // namespace

std::string GradientName(size_t layer, size_t i) {
  return "layer" + std::to_string(layer) + "." + std::to_string(i);
}

Training::Training(Setting setting)
    : setting_(std::move(setting)),
      tuner_(setting_.limits, setting_.searches),
      coordinator_(OptionsOf(setting_, setting_.limits)) {
  for (uint32_t i = 0; i < kMembers; ++i) {
    members_.push_back(std::make_unique<Member>(0, i, kMembers, 1024));
  }
  for (const Layer& layer : setting_.model.layers) {
    const size_t index = of_layer_.size();
    work_ += layer.work;
    of_layer_.emplace_back();
    for (const int64_t elements : layer.elements) {
      Gradient gradient = {GradientName(index, of_layer_[index].size()), {}};
      gradient.request.name = gradient.name;
      gradient.request.priority = -static_cast<int>(gradients_.size());
      Signature& signature = gradient.request.signature;
      signature.tensors.push_back({DataType::kFloat32, {elements}});
      if (setting_.most_error > 0) {
        signature.encoding = {EncodingKind::kAdaptive,
                              static_cast<uint16_t>(setting_.most_error * 1e4)};
      }
      of_layer_[index].push_back(gradients_.size());
      gradients_.push_back(std::move(gradient));
    }
  }
}

void Training::Step() {
  const double begin = now_;
  exposed_ = 0;
  const std::vector<Layer>& layers = setting_.model.layers;
  const double compute = setting_.model.compute_seconds;
  for (size_t i = 0; i < layers.size() && !setting_.overlaps_steps; ++i) WaitFor(i);
  for (size_t i = 0; i < layers.size(); ++i) {
    WaitFor(i);
    Compute(compute * kForward * layers[i].work / work_);
  }
  for (size_t i = layers.size(); i-- > 0;) {
    Compute(compute * (1 - kForward) * layers[i].work / work_);
    Submit(i);
  }
  seconds_ = now_ - begin;
}

void Training::Compute(double seconds) {
  const double end = now_ + seconds;
  RunUntil(end);
  now_ = end;
}

void Training::WaitFor(size_t layer) {
  blocked_at_ = now_;
  for (const size_t i : of_layer_[layer]) {
    while (!gradients_[i].is_done) EndFirst();
  }
  blocked_at_ = std::numeric_limits<double>::infinity();
}

void Training::Submit(size_t layer) {
  for (const size_t i : of_layer_[layer]) {
    gradients_[i].is_done = false;
    pending_[++next_token_] = i;
    for (const auto& member : members_) Check(member->Submit(gradients_[i].request, next_token_));
  }
  for (uint32_t i = 0; i < kMembers; ++i) {
    while (const auto report = members_[i]->TakeReport()) {
      Check(coordinator_.OnReport(i, *report, now_));
    }
  }
  Publish();
}

void Training::Publish() {
  for (PlanEntry& entry : coordinator_.TakePlan(now_)) {
    tuner_.OnEntry(coordinator_, entry, now_);
    waiting_.push_back({std::move(entry), {}, {}, 0});
    if (waiting_.size() == 1) Start(waiting_.front());
  }
  for (TuningRecord& record : tuner_.TakeRecords()) log_.push_back(std::move(record));
}

void Training::Start(Running& running) {
  Action action;
  for (const auto& member : members_) {
    auto applied = member->Apply(running.entry);
    Check(applied.status());
    action = applied.TakeValue();
  }
  EncodingChooser::Bucket& bucket = running.bucket;
  bucket.encoding = action.common.encoding;
  int64_t elements = 0;
  for (const Piece& piece : action.pieces) elements += piece.count;
  bucket.bytes = 4 * elements;
  const double sent =
      static_cast<double>(elements) * bucket.encoding.BytesPerElement(DataType::kFloat32);
  if (bucket.encoding.IsLossy()) {
    bucket.coding_seconds = static_cast<double>(bucket.bytes) / kCodingBytesPerSecond;
  }
  bucket.seconds = kSoftwareLatency + setting_.latency_seconds + bucket.coding_seconds +
                   sent / (setting_.megabits * 1e6 / 8);
  running.finished = action.finished;
  running.end = now_ + bucket.seconds;
}

void Training::EndFirst() {
  Running first = std::move(waiting_.front());
  waiting_.pop_front();
  now_ = std::max(now_, first.end);
  const double began = first.end - first.bucket.seconds;
  first.bucket.exposed_seconds = std::max(0.0, first.end - std::max(blocked_at_, began));
  exposed_ += first.bucket.exposed_seconds;
  tuner_.OnBucket(coordinator_, first.bucket, true);
  coordinator_.OnExecuted(first.entry.sequence);
  for (const Token token : first.finished) OnFinished(token, first.bucket.encoding);
  if (!waiting_.empty()) Start(waiting_.front());
  Publish();
}

void Training::RunUntil(double time) {
  while (!waiting_.empty() && waiting_.front().end <= time) EndFirst();
}

void Training::OnFinished(Token token, const Encoding& encoding) {
  const auto found = pending_.find(token);
  Gradient& gradient = gradients_[found->second];
  pending_.erase(found);
  gradient.is_done = true;
  encodings_[gradient.name] = encoding;
  if (!encoding.IsLossy()) return;
  for (const auto& member : members_) {
    member->NoteError(gradient.name, encoding, ErrorOf(encoding));
  }
}

}  // namespace horoscale::tuning
