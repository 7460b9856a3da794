#include "transport/tcp/tcp_call.h"

#include <sys/socket.h>

#include <sstream>
#include <utility>

#include "platform/descriptors.h"

namespace horoscale {

TcpCall::TcpCall(const TcpLinkTerms& terms, int peer, const std::string& places, Poller* poller,
                 uint64_t tag)
    : terms_(terms), peer_(peer), poller_(poller), tag_(tag) {
  misplaced_ = Status::Protocol("it published no address");
  std::istringstream lines(places);
  for (std::string line; std::getline(lines, line);) {
    auto place = ParseHostPort(line);
    if (place.ok()) places_.push_back(place.TakeValue());
    if (!place.ok()) misplaced_ = place.status();
  }
}

TcpCall::Progress TcpCall::Begin() {
  Drop();
  place_ = 0;
  may_come_ = is_answered_ = false;
  failure_ = {};
  return Run(StartStream());
}

void TcpCall::GiveUp() {
  if (stage_ == Stage::kIdle) return;
  (void)NextPlace(
      Status::Timeout("no answer from " + (dial_ ? dial_->peer() : streams_.front().peer())));
}

TcpCall::Progress TcpCall::Go() { return stage_ == Stage::kIdle ? Progress::kGoingOn : Run({}); }

void TcpCall::Drop() {
  if (dial_) {
    poller_->Remove(dial_->fd());
    shutdown(dial_->fd(), SHUT_RDWR);
  }
  if (reader_) poller_->Remove(streams_.front().fd());
  // shutdown() as well as close(), because a forked child may also hold the sockets.
  for (const ByteStream& stream : streams_) shutdown(stream.fd(), SHUT_RDWR);
  dial_.reset();
  reader_.reset();
  streams_.clear();
  stage_ = Stage::kIdle;
  is_taken_ = false;
}

std::optional<TcpDial> TcpCall::Leave() {
  std::optional<TcpDial> rest;
  if (dial_) {
    poller_->Remove(dial_->fd());
    rest.swap(dial_);
  }
  Drop();
  return rest;
}

TcpStreams TcpCall::TakeStreams() { return std::exchange(streams_, {}); }

// Continues after a step with this status until it has to wait.
TcpCall::Progress TcpCall::Run(Status status) {
  while (true) {
    if (status.ok()) {
      const Step step = stage_ == Stage::kDialling ? GoOnDialling() : Hear();
      if (step.ok() && *step) return **step;
      status = step.status();
      continue;
    }
    if (!NextPlace(status)) return Progress::kFailed;
    status = StartStream();
  }
}

// Selects the next address; returns whether there is one.
bool TcpCall::NextPlace(const Status& failed) {
  Drop();
  const std::string before = failure_.ok() ? "" : failure_.message() + "; ";
  failure_ = Status(failed.code(), before + failed.message());
  return ++place_ < places_.size();
}

Status TcpCall::StartStream() {
  if (place_ >= places_.size()) return misplaced_;
  if (streams_.empty()) ++attempt_;
  auto dial =
      TcpDial::Start(places_[place_], terms_, peer_, terms_.Hello(streams_.size(), attempt_));
  if (!dial.ok()) {
    may_come_ |= LacksDescriptors(dial.status());
    return dial.status();
  }
  HS_RETURN_IF_ERROR(poller_->Add(dial->fd(), tag_, Poller::Interest::kReadWrite));
  dial_.emplace(dial.TakeValue());
  stage_ = Stage::kDialling;
  by_ = dial_->deadline();
  return {};
}

TcpCall::Step TcpCall::GoOnDialling() {
  const bool was_connected = dial_->is_connected();
  const Result<bool> greeted = dial_->Go();
  const bool is_late = greeted.ok() && !*greeted && dial_->deadline().Passed();
  if (!greeted.ok() || is_late) {
    const Status failed =
        is_late ? Status::Timeout("no answer from " + dial_->peer()) : greeted.status();
    const bool is_let_in_later = dial_->is_connected() && (is_late || MayBeLetInLater(failed));
    if (is_late || is_let_in_later) may_come_ = true;
    if (is_let_in_later) is_answered_ = true;
    return failed;
  }
  by_ = dial_->deadline();
  if (!*greeted) {
    if (dial_->is_connected() && !was_connected) {
      HS_RETURN_IF_ERROR(poller_->Modify(dial_->fd(), tag_, Poller::Interest::kRead));
    }
    return std::optional(Progress::kGoingOn);
  }
  poller_->Remove(dial_->fd());
  streams_.push_back(dial_->TakeStream());
  dial_.reset();
  if (streams_.size() == 1) {
    HS_RETURN_IF_ERROR(Await(Stage::kAnswer, kHandshakeSeconds));
  } else if (streams_.size() == 1 + terms_.data_streams) {
    HS_RETURN_IF_ERROR(Await(Stage::kEnd, 2 * kHandshakeSeconds));
  } else {
    HS_RETURN_IF_ERROR(StartStream());
  }
  return std::optional<Progress>();
}

Status TcpCall::Await(Stage stage, double seconds) {
  HS_RETURN_IF_ERROR(poller_->Add(streams_.front().fd(), tag_));
  reader_.emplace(streams_.front(), TcpHelloReader::Awaited::kAnswer);
  stage_ = stage;
  by_ = Deadline::After(seconds);
  return {};
}

TcpCall::Step TcpCall::Hear() {
  const std::string& address = streams_.front().peer();
  const Result<bool> heard = reader_->Receive(streams_.front());
  if (!heard.ok() || (!*heard && by_.Passed())) {
    may_come_ = is_answered_ = true;
    if (!heard.ok()) return heard.status();
    return Status::Timeout("no answer from " + address);
  }
  if (!*heard) return std::optional(Progress::kGoingOn);
  const Result<TcpAnswer> answer = reader_->Answer();
  if (!answer.ok()) return answer.status();
  poller_->Remove(streams_.front().fd());
  reader_.reset();
  if (stage_ == Stage::kAnswer && *answer == TcpAnswer::kTaken) {
    is_taken_ = true;
    HS_RETURN_IF_ERROR(StartStream());
    return std::optional<Progress>();
  }
  if (stage_ == Stage::kEnd && *answer == TcpAnswer::kMade) {
    stage_ = Stage::kIdle;
    return std::optional(Progress::kMade);
  }
  const bool is_final =
      stage_ == Stage::kAnswer && (*answer == TcpAnswer::kCrossing || *answer == TcpAnswer::kLost);
  if (!is_final) return Status::Protocol(address + " sent an invalid answer");
  Drop();
  return std::optional(*answer == TcpAnswer::kCrossing ? Progress::kCrossing : Progress::kRefused);
}

}  // namespace horoscale
