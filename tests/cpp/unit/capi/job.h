// Jobs that use only the C ABI: their ranks are threads of this process, over shared memory.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "horoscale/horoscale.h"

namespace horoscale::testing {

inline constexpr double kDeadlineSeconds = 60;  // bounds a wait that should be short

// The store of a job. Its ranks find the secret automatically.
class Meeting {
 public:
  Meeting() {
    int32_t port = 0;
    EXPECT_EQ(hs_store_serve("127.0.0.1", 0, nullptr, 0, &server_, &port), HS_OK);
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~Meeting() { hs_store_server_free(server_); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  hs_init_options Options(int rank, int size) const {
    hs_init_options options = {};
    options.struct_size = sizeof options;
    options.rank = rank;
    options.size = size;
    options.rendezvous = address_.c_str();
    options.serve_rendezvous = 0;
    return options;
  }

 private:
  hs_store_server* server_ = nullptr;
  std::string address_;
};

// Joins a job of `size` ranks, runs the body in each, and frees the runtimes when all have ended.
inline void RunRanks(const Meeting& meeting, int size,
                     const std::function<void(int rank, hs_runtime* runtime)>& body) {
  std::vector<hs_runtime*> runtimes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      hs_runtime*& runtime = runtimes[static_cast<size_t>(rank)];
      const hs_init_options options = meeting.Options(rank, size);
      ASSERT_EQ(hs_init(&options, &runtime), HS_OK) << hs_error()->message;
      body(rank, runtime);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (hs_runtime* runtime : runtimes) hs_runtime_free(runtime);
}

// A request for one float32 vector; the caller's vector and shape must outlive it.
struct VectorRequest {
  explicit VectorRequest(hs_kind kind, std::vector<float>& data, const char* name = "x")
      : shape(static_cast<int64_t>(data.size())) {
    tensor.in = data.data();
    tensor.out = data.data();
    tensor.dtype = HS_FLOAT32;
    tensor.num_dims = 1;
    tensor.shape = &shape;
    request.struct_size = sizeof request;
    request.kind = kind;
    request.name = name;
    request.tensors = &tensor;
    request.num_tensors = 1;
    request.reduce_op = HS_SUM;
    request.prescale = request.postscale = 1.0;
    request.will_wait = 1;
  }
  VectorRequest(const VectorRequest&) = delete;
  VectorRequest& operator=(const VectorRequest&) = delete;

  int64_t shape;
  hs_tensor tensor = {};
  hs_request request = {};
};

// Enqueues and waits.
inline hs_code Call(hs_runtime* runtime, const hs_request& request) {
  hs_handle* handle = nullptr;
  if (const hs_code code = hs_enqueue(runtime, &request, &handle); code != HS_OK) return code;
  const hs_code code = hs_wait(handle, kDeadlineSeconds);
  hs_handle_free(handle);
  return code;
}

}  // namespace horoscale::testing
