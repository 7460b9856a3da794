/*
 * Staging (cpp/transport/memory/staging.h): a message is copied by both ranks at once, through cells
 * of an area that serves one message after the other.
 *
 * The receiver takes staged pieces and reads the rest itself, starting from the end, one or several
 * pieces at a time, in any order. It may abandon a message at any time and continue with the next one;
 * the sender learns of that later. The sender may stop at any time. Spin shows that the receiver only
 * takes cells of this use and piece, and that no cell is overwritten while it is being read.
 *
 * Deliberately broken variants:
 *   -DBROKEN_STAGED_EARLY    the sender announces a piece before it is complete
 *   -DBROKEN_EMPTIED_EARLY   the receiver frees a cell before it has read all of it
 *   -DBROKEN_NO_USE          the receiver ignores the use that a counter belongs to
 */
#define PIECES 3
#define CELLS 2
#define USES 2
#define PACK(use, pieces) ((use) * 8 + (pieces))

byte begun;
byte staged;
byte emptied;
byte unread;
byte cells[CELLS];
chan frames = [USES] of { byte };

proctype Sender() {
  byte use = 0;
  byte copied;
  byte seen_unread;
  byte seen_emptied;
end:
  do
  :: frames ? use -> copied = 0
  :: use > 0 -> use = 0 /* its operation has ended */
  :: use > 0 ->
    seen_unread = unread;
    seen_emptied = emptied;
    if
    :: seen_unread / 8 == use && seen_emptied / 8 == use && copied < seen_unread % 8 &&
       copied - seen_emptied % 8 < CELLS ->
      begun = PACK(use, copied + 1);
      cells[copied % CELLS] = 0; /* half of it */
#ifdef BROKEN_STAGED_EARLY
      staged = PACK(use, copied + 1);
#endif
      cells[copied % CELLS] = PACK(use, copied + 1);
      copied++;
      staged = PACK(use, copied)
    :: else -> skip
    fi
  od
}

proctype Receiver() {
  byte use = 1;
  byte taken;
  byte left;
  byte there;
  do
  :: use > USES -> break
  :: else ->
    taken = 0;
    left = PIECES;
    emptied = PACK(use, 0);
    unread = PACK(use, left);
    frames ! use;
    do
    :: taken == left -> break
    :: taken < left ->
      there = staged;
#ifdef BROKEN_NO_USE
      there = there % 8;
#else
      there = (there / 8 == use -> there % 8 : 0);
#endif
      if
      :: taken < there ->
        assert(cells[taken % CELLS] == PACK(use, taken + 1));
#ifdef BROKEN_EMPTIED_EARLY
        emptied = PACK(use, taken + 1);
#endif
        assert(cells[taken % CELLS] == PACK(use, taken + 1)); /* still */
        taken++;
        emptied = PACK(use, taken)
      :: else -> skip
      fi
    :: taken < left ->
      left--;
      do
      :: taken < left -> left--
      :: break
      od;
      unread = PACK(use, left) /* reads them */
    :: taken < left -> break                            /* gives up */
    od;
    use++
  od
}

init {
  atomic {
    run Sender();
    run Receiver();
  }
}
