// PendingOperations: this rank's unfinished operations on a process set.
#pragma once

#include <unordered_map>
#include <utility>

#include "runtime/operation.h"

namespace horoscale {

class PendingOperations {
 public:
  using Table = std::unordered_map<Token, OperationPtr>;

  void Add(OperationPtr operation) {
    const Token token = operation->token;
    if (!spare_) {
      by_token_.emplace(token, std::move(operation));
      return;
    }
    spare_.key() = token;
    spare_.mapped() = std::move(operation);
    by_token_.insert(std::move(spare_));
  }

  // Null if it is not pending here.
  Operation* Find(Token token) const {
    const auto found = by_token_.find(token);
    return found == by_token_.end() ? nullptr : found->second.get();
  }

  // The same with ownership, for callers that may finish it meanwhile.
  OperationPtr Hold(Token token) const {
    const auto found = by_token_.find(token);
    return found == by_token_.end() ? nullptr : found->second;
  }

  // Removes it; null if it is not pending here.
  OperationPtr Take(Token token) {
    const auto found = by_token_.find(token);
    if (found == by_token_.end()) return nullptr;
    OperationPtr operation = std::move(found->second);
    spare_ = by_token_.extract(found);
    return operation;
  }

  bool empty() const { return by_token_.empty(); }
  size_t size() const { return by_token_.size(); }
  Table::const_iterator begin() const { return by_token_.begin(); }
  Table::const_iterator end() const { return by_token_.end(); }

 private:
  Table by_token_;
  Table::node_type spare_;  // node of the last removed operation, reused for the next one
};

}  // namespace horoscale
