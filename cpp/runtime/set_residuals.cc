#include "runtime/set_residuals.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/codec.h"
#include "core/wire.h"

namespace horoscale {
namespace {

// The prefix of Save()'s result; it changes with the format.
constexpr std::string_view kFormat = "horoscale residuals 1";

static_assert(std::endian::native == std::endian::little, "floats are saved as they are");

void Put(WireWriter& out, const std::vector<float>& floats) {
  out.Bytes(std::as_bytes(std::span(floats)));
}

std::vector<float> GetFloats(WireReader& in) {
  const std::span<const std::byte> bytes = in.View(in.left());
  if (bytes.size() % sizeof(float) != 0) in.Fail("a number is truncated");
  std::vector<float> floats(bytes.size() / sizeof(float));
  if (!floats.empty()) std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

void Put(WireWriter& out, const TensorResiduals& tensor) {
  out.Varint(static_cast<uint64_t>(tensor.elements));
  out.Varint(tensor.places.lanes);
  out.Varint(tensor.places.hosts);
  out.Varint(static_cast<uint64_t>(tensor.places.elements));
  if (tensor.places.hosts == 1) {  // of a reducescatter
    out.Varint(tensor.shares.size());
    for (const int64_t share : tensor.shares) out.Varint(static_cast<uint64_t>(share));
  }
  Put(out, tensor.sums);
  Put(out, tensor.results);
}

// Prepare() discards inconsistent values when it is called next.
std::shared_ptr<TensorResiduals> GetTensor(WireReader& in, uint32_t home) {
  auto tensor = std::make_shared<TensorResiduals>();
  tensor->elements = static_cast<int64_t>(in.Varint(kMaxRequestDataBytes));
  UnitPlaces& places = tensor->places;
  places.lanes = static_cast<uint32_t>(in.Varint(kMaxRanks));
  places.hosts = static_cast<uint32_t>(in.Varint(kMaxRanks));
  places.elements = static_cast<int64_t>(in.Varint(kGroupElements));
  if (places.hosts == 1) tensor->shares.resize(in.Count(kMaxRanks, 1));
  for (int64_t& share : tensor->shares) {
    share = static_cast<int64_t>(in.Varint(kMaxRequestDataBytes));
  }
  tensor->sums = GetFloats(in);
  tensor->results = GetFloats(in);
  if (places.lanes == 0 || places.hosts == 0 || places.elements == 0) {
    in.Fail("a tensor has no units");
  }
  if (in.ok() && !tensor->HasSizes(home)) in.Fail("the size of a tensor is wrong");
  return tensor;
}

}  // namespace

std::shared_ptr<TensorResiduals> SetResiduals::Of(const std::string& name, uint32_t tensor) {
  if (name.empty()) return nullptr;
  std::lock_guard lock(mutex_);
  const auto found = tensors_.find({name, tensor});
  if (found != tensors_.end()) return found->second;
  if (tensors_.size() >= kMostTensors) return nullptr;
  return tensors_[{name, tensor}] = std::make_shared<TensorResiduals>();
}

std::vector<std::byte> SetResiduals::Save() const {
  std::lock_guard lock(mutex_);
  WireWriter out;
  out.Text(kFormat);
  out.Varint(self_);
  out.Varint(ranks_.size());
  for (int rank : ranks_) out.Zigzag(rank);
  // Tensors that were never encoded (for example, because of the operator) have nothing to save.
  const auto is_prepared = [](const auto& entry) { return entry.second->places.elements > 0; };
  out.Varint(static_cast<uint64_t>(std::count_if(tensors_.begin(), tensors_.end(), is_prepared)));
  for (const auto& entry : tensors_) {
    if (!is_prepared(entry)) continue;
    out.Text(entry.first.first);
    out.Varint(entry.first.second);
    Put(out, *entry.second);
  }
  return out.Take();
}

Status SetResiduals::Load(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  if (in.Text(kFormat.size()) != kFormat) {
    return Status::InvalidArgument("the data is not residuals of this version");
  }
  const uint64_t self = in.Varint();
  std::vector<int> ranks(in.Count(kMaxRanks, 1));
  for (int& rank : ranks) rank = in.Int();
  if (in.ok() && (self != self_ || ranks != ranks_)) {
    return {StatusCode::kMismatch, "the residuals belong to member " + std::to_string(self) +
                                       " of a process set of " + std::to_string(ranks.size())};
  }
  Table tensors;
  for (size_t count = in.Count(kMostTensors, 6); in.ok() && count > 0; --count) {
    std::string name = in.Text(kMaxNameBytes);
    const auto tensor = static_cast<uint32_t>(in.Varint(kMaxTensors - 1));
    tensors[{name, tensor}] = GetTensor(in, HomeOf(name, tensor));
  }
  if (in.ok() && in.left() > 0) in.Fail("trailing bytes");
  if (!in.ok()) {
    return Status::InvalidArgument("the residuals are damaged: " + std::string(in.reason()));
  }
  std::lock_guard lock(mutex_);
  tensors_ = std::move(tensors);
  return Status::Ok();
}

void SetResiduals::Scale(double factor) {
  std::lock_guard lock(mutex_);
  if (factor == 0) return tensors_.clear();
  for (const auto& [key, tensor] : tensors_) tensor->Scale(static_cast<float>(factor));
}

}  // namespace horoscale
