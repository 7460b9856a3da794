/*
 * The control ring (cpp/transport/memory/spsc_ring.h, frame_stream.h): one producer, one consumer,
 * both of which sleep when they can't continue.
 *
 * The producer has more to send than the ring holds. When it finds no space it sets `waits`, checks
 * again, and then sleeps like every rank (arm, check once more, sleep). After freeing space, the
 * consumer rings the producer only if `waits` is set. Doorbells are those of doorbell.pml. Spin shows
 * that neither sleeps forever, that the order is kept and that the ring never overflows.
 *
 * Deliberately broken variants:
 *   -DBROKEN_WAITS_LATE    the producer sets `waits` after its last check
 *   -DBROKEN_WAITS_FIRST   the consumer checks `waits` before it frees the space
 */
#define CAPACITY 2
#define TOTAL 6

byte head;
byte tail;
bool waits;
byte slots[CAPACITY];

bool sleeping[2]; /* by side */
byte event[2];
#define PRODUCER 0
#define CONSUMER 1

inline Ring(side) {
  is_set = sleeping[side];
  if
  :: is_set ->
    d_step { is_set = sleeping[side]; sleeping[side] = false; } /* exchange */
    if
    :: is_set -> event[side]++
    :: else -> skip
    fi
  :: else -> skip
  fi
}

proctype Producer() {
  byte sent = 0;
  byte seen_tail;
  bool is_set;
  bool armed = false;
  do
  :: sent == TOTAL -> break
  :: else ->
#ifndef BROKEN_WAITS_LATE
    seen_tail = tail;
    if
    :: sent - seen_tail == CAPACITY -> waits = true
    :: else -> skip
    fi;
#endif
    seen_tail = tail;
    assert(sent - seen_tail <= CAPACITY);
    if
    :: sent - seen_tail < CAPACITY ->
      waits = false;
      slots[sent % CAPACITY] = sent;
      sent++;
      head = sent;
      Ring(CONSUMER);
      if
      :: armed -> sleeping[PRODUCER] = false; event[PRODUCER] = 0; armed = false
      :: else -> skip
      fi
    :: else ->
      if
      :: !armed -> sleeping[PRODUCER] = true; armed = true /* and look once more */
      :: else ->
#ifdef BROKEN_WAITS_LATE
        waits = true;
#endif
        event[PRODUCER] > 0; /* Sleep */
        sleeping[PRODUCER] = false;
        event[PRODUCER] = 0;
        armed = false
      fi
    fi
  od
}

proctype Consumer() {
  byte taken = 0;
  byte seen_head;
  bool is_set;
  bool has_waiter;
  bool armed = false;
  do
  :: taken == TOTAL -> break
  :: else ->
    seen_head = head;
    if
    :: seen_head > taken ->
      do /* all that is there, and then one store: as a reader of frames does */
      :: seen_head > taken -> assert(slots[taken % CAPACITY] == taken); taken++
      :: else -> break
      od;
#ifdef BROKEN_WAITS_FIRST
      has_waiter = waits;
      tail = taken;
#else
      tail = taken;
      has_waiter = waits;
#endif
      if
      :: has_waiter -> Ring(PRODUCER)
      :: else -> skip
      fi;
      if
      :: armed -> sleeping[CONSUMER] = false; event[CONSUMER] = 0; armed = false
      :: else -> skip
      fi
    :: else ->
      if
      :: !armed -> sleeping[CONSUMER] = true; armed = true /* and look once more */
      :: else ->
        event[CONSUMER] > 0; /* Sleep */
        sleeping[CONSUMER] = false;
        event[CONSUMER] = 0;
        armed = false
      fi
    fi
  od
}

init {
  atomic {
    run Producer();
    run Consumer();
  }
}
