#include "rendezvous/store_server.h"

#include <utility>

#include "platform/descriptors.h"
#include "rendezvous/store_server_loop.h"

namespace horoscale {

Result<std::unique_ptr<StoreServer>> StoreServer::Start(StoreServerOptions options) {
  if (options.secret.empty()) return Status::InvalidArgument("a store must have a secret");
  RaiseDescriptorLimit();  // it has one for each rank
  Result<std::unique_ptr<StoreServerLoop>> loop = StoreServerLoop::Create(std::move(options));
  if (!loop.ok()) return loop.status();
  std::unique_ptr<StoreServer> server(new StoreServer(loop.TakeValue()));
  Result<Thread> thread =
      Thread::Start("horoscale-store", [loop = server->loop_.get()] { loop->Run(); });
  if (!thread.ok()) return thread.status();
  server->thread_ = thread.TakeValue();
  return server;
}

StoreServer::StoreServer(std::unique_ptr<StoreServerLoop> loop)
    : loop_(std::move(loop)), port_(loop_->port()) {}

StoreServer::~StoreServer() { Stop(); }

uint64_t StoreServer::requests() const { return loop_->requests(); }

void StoreServer::Stop() {
  if (loop_ == nullptr) return;
  loop_->Stop();
  thread_.Join();
  loop_.reset();  // closes the listener and every connection
}

}  // namespace horoscale
