/*
 * Offered messages (cpp/core/message_frames.h, cpp/runtime/set_messages.h): the receiver reads a
 * message from its sender's memory, or requests it in frames. Once a send has ended, its caller may
 * overwrite that memory. A send may end early because the set fails at the sender, which then no
 * longer answers; the receiver learns of that later. Or the sender can't copy a requested message to
 * memory that it could be sent from, and withdraws it.
 *
 * Spin shows that a successful receive has its message, and that all operations end.
 *
 * Deliberately broken variants:
 *   -DBROKEN_BELIEVES   the receiver doesn't wait for the sender's confirmation of a read
 *   -DBROKEN_ANSWERS    a sender confirms although its operation has ended
 *   -DBROKEN_SILENT     a sender withdraws a message without notifying the receiver
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
