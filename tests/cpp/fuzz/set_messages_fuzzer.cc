// Any frames from a peer: a set's messages don't crash, write only into their receives, and end all
// of them.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "runtime/set_messages.h"
#include "transport/inproc/inproc_fabric.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace horoscale;
  auto fabric = InprocFabric::Create(2, {});
  if (!fabric.ok()) return 0;
  const std::unique_ptr<Transport> transport = (*fabric)->Endpoint(0);
  size_t ended = 0;
  LaunchOrder order;
  const SetPlace place({0, 0}, {0, 1}, 0);
  const auto no_lane = [] { return static_cast<const DeviceLane*>(nullptr); };
  MessageLaunches launches(order, place, no_lane, [](const OperationPtr&) {});
  const auto on_end = [&](const OperationPtr&, const Status&) { ++ended; };
  SetMessages messages(*transport, place, launches, on_end, [] {});
  std::vector<std::vector<std::byte>> memory(8, std::vector<std::byte>(100'000));
  for (Token token = 1; token <= memory.size(); ++token) {
    auto operation = std::make_shared<Operation>();
    operation->token = token;
    operation->message = std::make_unique<Message>();
    std::vector<std::byte>& bytes = memory[token - 1];
    const uint64_t length = token % 4 == 3 ? 0 : bytes.size();
    *operation->message = {token <= 4,
                           token % 2 == 0 ? 1 : 0,
                           {static_cast<int64_t>(token % 4), 0, DataType::kUint8, length},
                           bytes.data()};
    messages.Submit(std::move(operation));
  }
  bool ok = messages.Step().ok();
  // Frames, each preceded by a byte with its length.
  std::vector<std::byte> frame;
  for (size_t at = 0; ok && at < size;) {
    const size_t length = std::min<size_t>(data[at], size - at - 1);
    const auto* begin = reinterpret_cast<const std::byte*>(data + at + 1);
    frame.assign(begin, begin + length);
    ok = messages.OnFrame(1, frame).ok() && messages.Step().ok();
    at += 1 + length;
  }
  messages.Fail(Status(StatusCode::kShutdown, "the end"));
  if (ended != memory.size() || messages.Busy()) std::abort();
  return 0;
}
