// Simulates the training of a model on two hosts: a real coordinator, members and tuner, and a
// virtual clock, computation and network.
//
// A step computes the forward pass, then the backward pass, which submits the gradients of each
// layer when it has computed them. The next forward pass waits for the gradients of each layer
// before it computes it, or for all of them before the first one. A bucket takes the latency, the
// time of its bytes on the link and, with a lossy encoding, the time of encoding them.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/coordinator.h"
#include "core/member.h"
#include "core/tuner.h"
#include "tuning/models.h"

namespace horoscale::tuning {

// Of a layer's i-th gradient.
std::string GradientName(size_t layer, size_t i);

struct Setting {
  Model model;
  double megabits = 1000;
  double latency_seconds = 0;  // of the link, in addition to that of the software
  bool overlaps_steps = true;  // DistributedOptimizer(…, overlap_step=True)
  double most_error = 0;       // of adaptive compression; 0: nothing is compressed
  bool searches = false;       // --autotune
  Limits limits = {};          // that are configured
};

class Training {
 public:
  explicit Training(Setting setting);

  void Step();

  // Of the last step. A step ends with its backward pass.
  double seconds() const { return seconds_; }
  double exposed() const { return exposed_; }
  // The last encoding of each gradient.
  const std::map<std::string, Encoding>& encodings() const { return encodings_; }
  Limits limits() const { return tuner_.Get(); }
  const std::vector<TuningRecord>& log() const { return log_; }

 private:
  struct Gradient {
    std::string name;
    Request request;
    bool is_done = true;
  };
  struct Running {
    PlanEntry entry;
    EncodingChooser::Bucket bucket;
    std::vector<Token> finished;
    double end = 0;
  };

  void Compute(double seconds);
  void WaitFor(size_t layer);
  void Submit(size_t layer);
  void Publish();
  void Start(Running& running);
  void EndFirst();
  void RunUntil(double time);
  void OnFinished(Token token, const Encoding& encoding);

  const Setting setting_;
  std::vector<Gradient> gradients_;
  std::vector<std::vector<size_t>> of_layer_;  // indices into gradients_
  double work_ = 0;
  Tuner tuner_;
  Coordinator coordinator_;
  std::vector<std::unique_ptr<Member>> members_;
  Token next_token_ = 0;
  std::map<Token, size_t> pending_;  // indices into gradients_
  std::deque<Running> waiting_;      // published; the first one is in progress
  double now_ = 0;
  double blocked_at_ = std::numeric_limits<double>::infinity();
  double seconds_ = 0;
  double exposed_ = 0;
  std::map<std::string, Encoding> encodings_;
  std::vector<TuningRecord> log_;
};

}  // namespace horoscale::tuning
