#include "core/mailbox.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace horoscale {
namespace {

// One rank's mailbox, and peers that number their messages.
class MailboxTest : public ::testing::Test {
 protected:
  static Envelope Of(int64_t tag, uint64_t bytes = 8, uint8_t channel = 0) {
    return {tag, channel, DataType::kUint8, bytes};
  }

  // The receive that takes it; none if it was kept.
  std::optional<Mailbox::Id> Send(int peer, const Envelope& envelope, bool is_eager = true) {
    const uint64_t number = ++numbers_[peer];
    auto receive = mailbox_.Arrive(peer, number, envelope, is_eager, kEagerInHost);
    EXPECT_TRUE(receive.ok()) << receive.status().message();
    if (!receive.ok()) return std::nullopt;
    if (!*receive) {
      ArrivedMessage message{peer, number, envelope, is_eager, {}, {}};
      if (is_eager) message.payload.resize(envelope.bytes);
      mailbox_.Keep(std::move(message));
    }
    return *receive;
  }

  uint64_t NumberTakenBy(int peer, int64_t tag, uint8_t channel = 0) {
    const auto message = mailbox_.Post(next_id_++, peer, channel, tag);
    return message ? message->number : 0;
  }

  Mailbox mailbox_;
  std::map<int, uint64_t> numbers_;
  Mailbox::Id next_id_ = 100;
};

TEST_F(MailboxTest, TakesWhatAPeerSentWithATagInOrder) {
  Send(1, Of(7));
  Send(1, Of(8));
  Send(1, Of(7));
  EXPECT_EQ(NumberTakenBy(1, 7), 1u);
  EXPECT_EQ(NumberTakenBy(1, 7), 3u);
  EXPECT_EQ(NumberTakenBy(1, 8), 2u);
  EXPECT_EQ(NumberTakenBy(1, 8), 0u);
}

TEST_F(MailboxTest, ReceivesThatWaitTakeInTheirOrder) {
  EXPECT_FALSE(mailbox_.Post(1, 3, 0, 7));
  EXPECT_FALSE(mailbox_.Post(2, 3, 0, 7));
  EXPECT_EQ(Send(3, Of(7)), 1u);
  EXPECT_EQ(Send(3, Of(7)), 2u);
  EXPECT_EQ(Send(3, Of(7)), std::nullopt);
}

TEST_F(MailboxTest, ForgetsWhatAPeerThatLeftHasOnlyOffered) {
  Send(3, Of(7));
  Send(3, Of(7), false);
  Send(3, Of(7));
  Send(2, Of(7), false);
  EXPECT_TRUE(mailbox_.ForgetPeer(3).empty());
  EXPECT_EQ(mailbox_.num_kept(), 2u);
  EXPECT_EQ(NumberTakenBy(3, 7), 1u);
  EXPECT_EQ(NumberTakenBy(3, 7), 0u);
  EXPECT_TRUE(mailbox_.HasKeptOfAny(0, 7));
  EXPECT_EQ(NumberTakenBy(2, 7), 1u);
  EXPECT_FALSE(mailbox_.HasKeptOfAny(0, 7));
  EXPECT_EQ(mailbox_.num_kept(), 0u);
}

TEST_F(MailboxTest, ForgetsReceivesOfAPeerThatLeftAndOfAny) {
  EXPECT_FALSE(mailbox_.Post(1, kAnyPeer, 0, 7));
  EXPECT_FALSE(mailbox_.Post(2, 3, 0, 8));
  EXPECT_FALSE(mailbox_.Post(3, 4, 0, 8));
  std::vector<Mailbox::Id> forgotten = mailbox_.ForgetPeer(3);
  std::sort(forgotten.begin(), forgotten.end());
  EXPECT_EQ(forgotten, (std::vector<Mailbox::Id>{1, 2}));
  EXPECT_EQ(Send(4, Of(7)), std::nullopt);
  EXPECT_EQ(Send(4, Of(8)), 3u);
}

TEST_F(MailboxTest, PeersTagsAndChannelsDoNotMeet) {
  EXPECT_FALSE(mailbox_.Post(1, 3, 0, 7));
  EXPECT_EQ(Send(2, Of(7)), std::nullopt);
  EXPECT_EQ(Send(3, Of(8)), std::nullopt);
  EXPECT_EQ(Send(3, Of(7, 8, 1)), std::nullopt);
  EXPECT_EQ(Send(3, Of(7)), 1u);
  EXPECT_EQ(NumberTakenBy(3, 7, 1), 2u);
  EXPECT_EQ(mailbox_.num_kept(), 2u);
}

TEST_F(MailboxTest, AReceiveOfAnyPeerTakesWhatCameFirst) {
  Send(2, Of(7));
  Send(1, Of(7));
  const auto first = mailbox_.Post(1, kAnyPeer, 0, 7);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->peer, 2);
  const auto second = mailbox_.Post(2, kAnyPeer, 0, 7);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->peer, 1);
}

TEST_F(MailboxTest, TheReceiveThatWasPostedFirstTakesIt) {
  EXPECT_FALSE(mailbox_.Post(1, kAnyPeer, 0, 7));
  EXPECT_FALSE(mailbox_.Post(2, 4, 0, 7));
  EXPECT_FALSE(mailbox_.Post(3, kAnyPeer, 0, 7));
  EXPECT_EQ(Send(4, Of(7)), 1u);
  EXPECT_EQ(Send(4, Of(7)), 2u);
  EXPECT_EQ(Send(4, Of(7)), 3u);
}

TEST_F(MailboxTest, WhatIsOutOfOrderCannotBe) {
  EXPECT_FALSE(mailbox_.Arrive(1, 2, Of(7), true, kEagerInHost).ok());
  EXPECT_FALSE(mailbox_.Arrive(2, 0, Of(7), true, kEagerInHost).ok());
}

TEST_F(MailboxTest, CreditBoundsWhatNobodyHasAskedFor) {
  EagerCredit credit(kEagerInHost);
  uint64_t sent = 0;
  while (credit.Take(4096)) {
    Send(1, Of(7, 4096));
    ++sent;
  }
  EXPECT_EQ(sent, kEagerCreditBytes / (4096 + kEagerOverheadBytes));
  EXPECT_EQ(mailbox_.TakeCreditFor(1), 0u);
  EXPECT_FALSE(mailbox_.Arrive(1, numbers_[1] + 1, Of(7, 4096), true, kEagerInHost).ok());
}

TEST_F(MailboxTest, WhatIsTakenIsGivenBackInPortions) {
  EagerCredit credit(kEagerInHost);
  uint64_t given = 0;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(credit.Take(1000)) << i;
    Send(1, Of(7, 1000));
    EXPECT_NE(NumberTakenBy(1, 7), 0u);
    if (const uint64_t back = mailbox_.TakeCreditFor(1); back > 0) {
      EXPECT_GE(back, kLeastCreditGiven);
      EXPECT_TRUE(credit.Give(back).ok());
      ++given;
    }
  }
  EXPECT_GT(given, 0u);
  EXPECT_LT(given, 200u);
  EXPECT_FALSE(credit.Give(kEagerCreditBytes).ok());
}

TEST_F(MailboxTest, LargeMessagesAreNotEager) {
  EagerCredit credit(kEagerInHost);
  EXPECT_TRUE(credit.Take(kMaxEagerBytes));
  EXPECT_FALSE(credit.Take(kMaxEagerBytes + 1));
}

TEST_F(MailboxTest, BetweenHostsMessagesMayBeLarger) {
  EagerCredit credit(kEagerBetweenHosts);
  EXPECT_FALSE(credit.Take(kMaxEagerBytesBetweenHosts + 1));
  uint64_t number = 0;
  while (credit.Take(kMaxEagerBytesBetweenHosts)) {
    const Envelope large = Of(7, kMaxEagerBytesBetweenHosts);
    EXPECT_TRUE(mailbox_.Arrive(1, ++number, large, true, kEagerBetweenHosts).ok());
  }
  EXPECT_EQ(number, 4u);
  EXPECT_FALSE(mailbox_.Arrive(2, 1, Of(7, kMaxEagerBytes + 1), true, kEagerInHost).ok());
}

TEST_F(MailboxTest, OffersAreBounded) {
  for (uint32_t i = 0; i < kMaxOffers; ++i) Send(1, Of(i, 1 << 20), false);
  const uint64_t next = numbers_[1] + 1;
  EXPECT_FALSE(mailbox_.Arrive(1, next, Of(1, 1 << 20), false, kEagerInHost).ok());
  EXPECT_EQ(NumberTakenBy(1, 5), 6u);
  EXPECT_EQ(mailbox_.num_kept(), kMaxOffers - 1);
}

TEST_F(MailboxTest, AfterAFailureWholeMessagesCanBeTaken) {
  Send(1, Of(7));
  Send(1, Of(7, 1 << 20), false);
  EXPECT_FALSE(mailbox_.Post(1, 2, 0, 7));
  mailbox_.ForgetReceives();
  EXPECT_TRUE(mailbox_.TakeEager(1, 0, 7));
  EXPECT_FALSE(mailbox_.TakeEager(1, 0, 7));  // an offer
  EXPECT_EQ(Send(2, Of(7)), std::nullopt);
}

}  // namespace
}  // namespace horoscale
