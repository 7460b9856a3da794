/*
 * The doorbell (cpp/transport/memory/doorbell.h): two senders, one sleeper, no lost wake-up.
 *
 * All operations of the code are sequentially consistent, so each is one atomic step here. A sender
 * stores its data, loads the sleeping flag, and, if it is the one that clears the flag, signals the
 * eventfd. The sleeper sets the flag, checks once more, sleeps until the eventfd is readable, clears
 * the flag and drains.
 *
 * After a lost wake-up the sleeper waits forever on an eventfd that nobody signals: spin reports this
 * as an invalid end state. Deliberately broken variants, which the model must detect:
 *   -DBROKEN_LOOK_FIRST    the sleeper checks before it sets the flag
 *   -DBROKEN_FLAG_FIRST    a sender checks the flag before it stores its data
 */
#define SENDERS 2
#define NEWS 2 /* of each sender */

byte published[SENDERS]; /* the counters that the sleeper polls */
byte seen[SENDERS];
bool sleeping;
byte event; /* the eventfd's counter */
byte rings;
byte sleeps;

inline Look(found) {
  d_step {
    found = (published[0] != seen[0] || published[1] != seen[1]);
    seen[0] = published[0];
    seen[1] = published[1];
  }
}

proctype Sender(byte me) {
  byte sent = 0;
  bool is_set;
  bool was_set;
  do
  :: sent < NEWS ->
#ifdef BROKEN_FLAG_FIRST
    is_set = sleeping;
    published[me]++;
#else
    published[me]++;
    is_set = sleeping;
#endif
    sent++;
    if
    :: is_set ->
      d_step { was_set = sleeping; sleeping = false; } /* exchange */
      if
      :: was_set -> d_step { event++; rings++; }
      :: else -> skip
      fi
    :: else -> skip
    fi
  :: else -> break
  od
}

proctype Sleeper() {
  bool found;
  do
  :: seen[0] == NEWS && seen[1] == NEWS -> break
  :: else ->
    Look(found);
    if
    :: found -> skip
    :: else ->
#ifdef BROKEN_LOOK_FIRST
      Look(found);
      sleeping = true; /* Arm */
#else
      sleeping = true; /* Arm */
      Look(found);
#endif
      sleeps++;
      if
      :: found -> skip
      :: else -> event > 0 /* Sleep */
      fi;
      sleeping = false; /* Disarm */
      event = 0;
    fi
  od;
  assert(rings <= sleeps) /* once a sleep at most */
}

init {
  atomic {
    run Sender(0);
    run Sender(1);
    run Sleeper();
  }
}
