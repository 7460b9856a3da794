#include "runtime/timeline.h"

#include <cerrno>
#include <cmath>

#include "runtime/json.h"

namespace horoscale {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr double kLeastWaitSeconds = 1e-6;  // less was no wait

std::string Title(int process_set_id, const std::string& name) {
  return "set " + std::to_string(process_set_id) + ": " + name;
}

// Unnamed calls share a row, because one row per call would hide the others.
std::string TitleOf(const Operation& operation) {
  if (operation.message) return Title(operation.process_set_id, "messages");
  const std::string& name = operation.request.name;
  return Title(operation.process_set_id, name.empty() ? "unnamed" : name);
}

}  // namespace

Timeline::~Timeline() { (void)Stop(); }

Status Timeline::Start(const std::string& path, bool mark_cycles) {
  const std::string own_path = rank_ == 0 ? path : path + ".rank" + std::to_string(rank_);
  std::lock_guard lock(mutex_);
  if (Status status = StopLocked(); !status.ok()) return status;
  auto file = CreateOutputFile(own_path);
  if (!file.ok()) {
    return Status(file.status().code(), "opening the timeline: " + file.status().message());
  }
  file_ = file.TakeValue();
  // Flush() is called before the buffer is full, so that a killed process leaves complete events.
  buffer_.resize(kBufferBytes);
  std::setvbuf(file_.get(), buffer_.data(), _IOFBF, buffer_.size());
  rows_.clear();
  first_event_ = true;
  mark_cycles_ = mark_cycles;
  std::fputs("[", file_.get());
  Write(JsonObject()
            .Add("ph", "M")
            .Add("name", "process_name")
            .Add("pid", rank_)
            .AddJson("args", JsonObject().Add("name", "rank " + std::to_string(rank_)).Build())
            .Build());
  enabled_.store(true);
  return Status::Ok();
}

Status Timeline::Stop() {
  std::lock_guard lock(mutex_);
  return StopLocked();
}

Status Timeline::StopLocked() {
  enabled_.store(false);
  if (!file_) return Status::Ok();
  std::fputs("\n]\n", file_.get());
  const bool failed = std::ferror(file_.get()) != 0;
  const int error = std::fclose(file_.release()) != 0 ? errno : (failed ? EIO : 0);
  return error == 0 ? Status::Ok() : Status::System("writing the timeline", error);
}

void Timeline::Flush() {
  std::lock_guard lock(mutex_);
  if (file_) std::fflush(file_.get());
}

void Timeline::Write(const std::string& event) {
  std::fputs(first_event_ ? "\n" : ",\n", file_.get());
  std::fputs(event.c_str(), file_.get());
  first_event_ = false;
}

int Timeline::RowOf(const std::string& title) {
  const auto [found, inserted] = rows_.try_emplace(title, static_cast<int>(rows_.size()) + 1);
  if (inserted) {
    Write(JsonObject()
              .Add("ph", "M")
              .Add("name", "thread_name")
              .Add("pid", rank_)
              .Add("tid", found->second)
              .AddJson("args", JsonObject().Add("name", title).Build())
              .Build());
  }
  return found->second;
}

void Timeline::Span(int row, std::string_view name, double begin, double end,
                    const std::string& arguments) {
  char times[96];
  std::snprintf(times, sizeof times, "\"ts\": %.3f, \"dur\": %.3f", begin * 1e6,
                (end - begin) * 1e6);
  Write("{\"ph\": \"X\", \"pid\": " + std::to_string(rank_) + ", \"tid\": " + std::to_string(row) +
        ", " + times + ", \"name\": " + JsonString(name) + ", \"args\": " + arguments + "}");
}

void Timeline::OnWaited(const Operation& operation, double began, double now) {
  if (now - began < kLeastWaitSeconds) return;
  std::lock_guard lock(mutex_);
  if (!file_) return;
  const JsonObject arguments = JsonObject().Add("for", TitleOf(operation));
  Span(RowOf("the program"), "WAIT", began, now, arguments.Build());
}

void Timeline::OnOperationDone(const Operation& operation, double now) {
  std::lock_guard lock(mutex_);
  if (!file_) return;
  const Signature& signature = operation.request.signature;
  const int row = RowOf(TitleOf(operation));
  if (operation.message) {
    const Message& message = *operation.message;
    JsonObject arguments;
    arguments.Add("what", operation.DisplayName())
        .Add("bytes", message.envelope.bytes)
        .Add("status", operation.status.ok() ? "ok" : operation.status.message());
    const char* const name = message.is_send    ? "SEND"
                             : message.released ? "RELEASE"
                             : message.is_view  ? "VIEW"
                                                : "RECV";
    return Span(row, name, operation.enqueued_at, now, arguments.Build());
  }
  const double planned = operation.planned_at == 0 ? now : operation.planned_at;
  const double started = operation.started_at == 0 ? now : operation.started_at;
  Span(row, "NEGOTIATE", operation.enqueued_at, planned, "{}");
  if (started > planned) Span(row, "QUEUE", planned, started, "{}");
  JsonObject arguments;
  arguments.Add("bytes", static_cast<uint64_t>(signature.TotalBytes()))
      .Add("priority", operation.request.priority)
      .Add("entry", operation.plan_entry)
      .Add("bucket_tensors", static_cast<uint64_t>(operation.bucket_tensors))
      .Add("status", operation.status.ok() ? "ok" : operation.status.message());
  if (signature.encoding.IsAdaptive()) {
    arguments.Add("encoding", Name(operation.encoding));
    const double elements = static_cast<double>(signature.TotalBytes()) /
                            static_cast<double>(SizeOf(signature.tensors[0].dtype));
    const double sent = elements * operation.encoding.BytesPerElement(signature.tensors[0].dtype);
    arguments.Add("bytes_sent", static_cast<uint64_t>(sent));
    if (operation.squares > 0) {
      arguments.Add("relative_error", std::sqrt(operation.error_squares / operation.squares));
    }
  }
  if (operation.post > 0) arguments.Add("one_hop", operation.post);
  Span(row, Name(signature.kind), started, now, arguments.Build());
}

void Timeline::OnBucketDone(int process_set_id, const Action& action, double started_at,
                            double now) {
  std::lock_guard lock(mutex_);
  if (!file_ || (action.pieces.size() < 2 && !mark_cycles_)) return;
  const int row = RowOf(Title(process_set_id, "plan"));
  JsonObject arguments;
  arguments.Add("entry", action.sequence)
      .Add("tensors", static_cast<uint64_t>(action.pieces.size()))
      .Add("first", action.display_name);
  Span(row, action.pieces.size() > 1 ? "FUSED" : "ENTRY", started_at, now, arguments.Build());
}

}  // namespace horoscale
