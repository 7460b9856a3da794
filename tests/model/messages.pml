/*
 * Offered messages (cpp/core/message_frames.h, cpp/runtime/set_messages.h): the receiver reads a
 * message where its sender has it, or asks for it in frames. Once a send has ended its caller writes
 * into that memory, the next message say. It may end in the middle, when the set fails at the sender,
 * which answers nothing any more; the receiver hears of that later. Or the sender can't bring what it
 * is asked for to where it could be sent from, and withdraws it.
 *
 * Spin shows that a receive that ends well has its message, and that all operations end.
 *
 * Variants that are wrong on purpose:
 *   -DBROKEN_BELIEVES   the receiver doesn't wait for what the sender says to what was read
 *   -DBROKEN_ANSWERS    a sender whose operation has ended answers all the same
 *   -DBROKEN_SILENT     a sender withdraws a message and doesn't say so
 */
#define MESSAGES 2
#define CALLERS 9 /* what is written after the end */

mtype = { OFFER, CLEAR, DATA, TAKEN, CONFIRMED, WITHDRAWN };

chan forth = [3] of { mtype, byte, byte }; /* what, which message, its bytes */
chan back = [3] of { mtype, byte };

byte memory = CALLERS;
bool failed = false; /* the set, at the sender; the receiver may hear of it from then on */

proctype Sender() {
  byte number = 1;
  byte which;
  bool by_frames;
  do
  :: number > MESSAGES -> break
  :: else ->
    memory = number;
    by_frames = false;
    forth ! OFFER, number, 0;
    do
    :: true ->
      failed = true;
      memory = CALLERS;
      goto ended
    :: back ? CLEAR, which ->
      assert(which == number && !by_frames);
      if
      :: by_frames = true; forth ! DATA, number, memory
      :: true ->
#ifndef BROKEN_SILENT
        forth ! WITHDRAWN, number, 0;
#endif
        break
      fi
    :: back ? TAKEN, which ->
      assert(which == number);
      if
      :: by_frames -> skip
      :: else -> forth ! CONFIRMED, number, 0
      fi;
      break
    od;
    memory = CALLERS;
    number++
  od;
ended:
end:
  do
  :: back ? TAKEN, which ->
#ifdef BROKEN_ANSWERS
    forth ! CONFIRMED, which, 0
#else
    skip
#endif
  :: back ? CLEAR, which -> skip
  od
}

proctype Receiver() {
  byte number = 1;
  byte which;
  byte first;
  byte second;
  do
  :: number > MESSAGES -> break
  :: else ->
    if
    :: forth ? OFFER, which, _ -> assert(which == number)
    :: failed -> goto ended
    fi;
    if
    :: true -> /* it can read it there */
      first = memory;
      second = memory;
      back ! TAKEN, number;
#ifndef BROKEN_BELIEVES
      if
      :: forth ? CONFIRMED, which, _ -> assert(which == number)
      :: failed -> goto ended
      fi;
#endif
      assert(first == number && second == number)
    :: true ->
      back ! CLEAR, number;
      if
      :: forth ? DATA, which, first ->
        assert(which == number && first == number);
        back ! TAKEN, number
      :: forth ? WITHDRAWN, which, _ -> assert(which == number)
      :: failed -> goto ended
      fi
    fi;
    number++
  od;
ended:
  skip
}

init {
  atomic {
    run Sender();
    run Receiver();
  }
}
