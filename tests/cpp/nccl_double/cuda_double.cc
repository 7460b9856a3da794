#include "nccl_double/cuda_double.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "nccl_double/nccl_double.h"

namespace nccl_double {
namespace {

constexpr int kDevices = 8;
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNotReady = 600;

// The work that an event was last recorded after.
class Token {
 public:
  void Set() {
    std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  bool done() {
    std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

struct Event {
  std::mutex mutex;
  std::shared_ptr<Token> token;
  std::shared_ptr<Token> Get() {
    std::lock_guard lock(mutex);
    return token;
  }
};

}  // namespace

struct Stream {
  explicit Stream(int on_device) : device(on_device), thread([this] { Run(); }) {}
  ~Stream() {
    {
      std::lock_guard lock(mutex);
      closing = true;
      changed.notify_all();
    }
    thread.join();
  }

  void Run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return closing || (!work.empty() && !blocked); });
      if (work.empty()) return;
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      lock.unlock();
      next();
      lock.lock();
    }
  }

  const int device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool closing = false;
  bool blocked = false;
  std::thread thread;  // last, because it uses the others
};

namespace {

struct Context {
  int device;
  std::mutex mutex;
  std::unique_ptr<Stream> legacy;  // created on first use
};

std::array<Context, kDevices>& Contexts() {
  static auto* const contexts = [] {
    auto* made = new std::array<Context, kDevices>;
    for (int i = 0; i < kDevices; ++i) (*made)[static_cast<size_t>(i)].device = i;
    return made;
  }();
  return *contexts;
}

thread_local std::vector<Context*> current;
std::atomic<bool> capturing{false};
std::atomic<bool> refuses_pinned{false};

// The null stream is one of the current context.
Stream* Resolve(Stream* stream) {
  if (stream != nullptr) return stream;
  if (current.empty()) std::abort();  // the driver would return: invalid context
  Context& context = *current.back();
  std::lock_guard lock(context.mutex);
  if (context.legacy == nullptr) context.legacy = std::make_unique<Stream>(context.device);
  return context.legacy.get();
}

}  // namespace

void Push(Stream* stream, std::function<void()> work) {
  Stream* const to = Resolve(stream);
  std::lock_guard lock(to->mutex);
  to->work.push_back(std::move(work));
  to->changed.notify_all();
}

int DeviceOf(const Stream* stream) { return stream->device; }

int CurrentDevice() { return current.empty() ? -1 : current.back()->device; }

}  // namespace nccl_double

using nccl_double::Context;
using nccl_double::Event;
using nccl_double::Stream;
using nccl_double::Token;

void double_block(void* stream, int block) {
  auto* const to = nccl_double::Resolve(static_cast<Stream*>(stream));
  std::lock_guard lock(to->mutex);
  to->blocked = block != 0;
  to->changed.notify_all();
}

void double_refuse_pinned(int value) { nccl_double::refuses_pinned.store(value != 0); }
void double_set_capturing(int value) { nccl_double::capturing.store(value != 0); }

#pragma GCC visibility push(default)
extern "C" {

int cuInit(unsigned) { return nccl_double::kSuccess; }

int cuDriverGetVersion(int* version) {
  *version = 12080;
  return nccl_double::kSuccess;
}

int cuGetErrorString(int, const char** text) {
  *text = "an error of the double";
  return nccl_double::kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < nccl_double::kDevices ? nccl_double::kSuccess
                                                         : nccl_double::kInvalidValue;
}

int cuDeviceGetCount(int* count) {
  *count = nccl_double::kDevices;
  return nccl_double::kSuccess;
}

int cuDeviceGetUuid(char* uuid, int device) {
  std::memset(uuid, 0, 16);
  uuid[0] = static_cast<char>(device + 1);
  return nccl_double::kSuccess;
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
  *context = &nccl_double::Contexts()[static_cast<size_t>(device)];
  return nccl_double::kSuccess;
}

int cuCtxPushCurrent_v2(Context* context) {
  nccl_double::current.push_back(context);
  return nccl_double::kSuccess;
}

int cuCtxPopCurrent_v2(Context** context) {
  if (nccl_double::current.empty()) return nccl_double::kInvalidValue;
  *context = nccl_double::current.back();
  nccl_double::current.pop_back();
  return nccl_double::kSuccess;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return nccl_double::kSuccess;
}

int cuStreamCreateWithPriority(Stream** stream, unsigned flags, int priority) {
  if (flags != 1 || priority != -5) return nccl_double::kInvalidValue;
  *stream = new Stream(nccl_double::CurrentDevice());
  return nccl_double::kSuccess;
}

int cuStreamDestroy_v2(Stream* stream) {
  delete stream;
  return nccl_double::kSuccess;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int own = 0;
  std::swap(*mode, own);
  return nccl_double::kSuccess;
}

int cuStreamIsCapturing(Stream*, int* status) {
  *status = nccl_double::capturing.load() ? 1 : 0;
  return nccl_double::kSuccess;
}

int cuEventCreate(Event** event, unsigned) {
  *event = new Event;
  return nccl_double::kSuccess;
}

int cuEventRecord(Event* event, Stream* stream) {
  auto token = std::make_shared<Token>();
  {
    std::lock_guard lock(event->mutex);
    event->token = token;
  }
  nccl_double::Push(stream, [token] { token->Set(); });
  return nccl_double::kSuccess;
}

int cuEventQuery(Event* event) {
  const auto token = event->Get();
  return token == nullptr || token->done() ? nccl_double::kSuccess : nccl_double::kNotReady;
}

int cuEventDestroy_v2(Event* event) {
  delete event;
  return nccl_double::kSuccess;
}

int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  if (const auto token = event->Get()) nccl_double::Push(stream, [token] { token->Wait(); });
  return nccl_double::kSuccess;
}

int cuMemAllocAsync(uint64_t* address, size_t bytes, Stream*) {
  *address = reinterpret_cast<uint64_t>(std::malloc(bytes));
  return nccl_double::kSuccess;
}

int cuMemFreeAsync(uint64_t address, Stream* stream) {
  nccl_double::Push(stream, [address] { std::free(reinterpret_cast<void*>(address)); });
  return nccl_double::kSuccess;
}

int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  if (nccl_double::refuses_pinned.load()) return nccl_double::kOutOfMemory;
  *memory = std::malloc(bytes);
  return nccl_double::kSuccess;
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
  nccl_double::Push(stream, [=] {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  });
  return nccl_double::kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
