/*
 * Posts between hosts (cpp/core/post_routes.h, post_table.h, post_box.h): two hosts of two members,
 * {0, 1} and {2, 3}. 0 and 2 are the speakers, and 0 is also the coordinator. Each member posts or
 * reports each operation, one after the other. Whatever they choose, each operation ends once on each
 * member, and in the same way on all: by all members' posts, or by the plan.
 *
 * Links are only FIFO. A report does not contain the use of its name: the coordinator counts the
 * member's earlier ones, so that a member's posts and reports must arrive in order.
 * Deliberately broken variants, which the model must detect:
 *   -DBROKEN_HOST      a speaker posts for its host before all of its members have posted
 *   -DBROKEN_ORDER     posts reach the coordinator ahead of reports
 *   -DBROKEN_SILENCE   a speaker that has not posted does not forward its host's posts
 */
#define OPERATIONS 2
#define ROOM 6

mtype = { POST, HOST, RESULT, REPORT, PLAN };

/* kind, member, operation */
chan from1 = [ROOM] of { mtype, byte, byte };  /* 1 to 0 */
chan from3 = [ROOM] of { mtype, byte, byte };  /* 3 to 2 */
chan from2 = [ROOM] of { mtype, byte, byte };  /* 2 to 0 */
chan past2 = [ROOM] of { mtype, byte, byte };  /* the same, another way */
chan to2 = [ROOM] of { mtype, byte, byte };    /* 0 to 2 */
chan to1 = [ROOM] of { mtype, byte }; /* what, which operation */
chan to3 = [ROOM] of { mtype, byte };

byte said[4];             /* by member, to the coordinator */
byte posts[OPERATIONS];   /* that the coordinator knows of */
byte reports[OPERATIONS]; /* the same */
byte ended[4];            /* operations, by member */
byte way[OPERATIONS];     /* how an operation has ended: 0 nowhere yet, 1 posts, 2 plan */

inline End(member, operation, how) {
  assert(ended[member] == operation);
  assert(way[operation] == 0 || way[operation] == how);
  way[operation] = how;
  ended[member]++;
}

/* A member has posted (is_post), or reported. */
inline Count(member, operation, is_post) {
  if
  :: is_post -> assert(operation == said[member]); posts[operation]++;
  :: else -> reports[said[member]]++;
  fi;
  k = said[member];
  said[member]++;
  if
  :: posts[k] + reports[k] == 4 && reports[k] > 0 ->
    to1 ! PLAN(k); to2 ! PLAN(0, k); End(0, k, 2); own = 0;
  :: else -> skip
  fi
}

/* For a member that is not a speaker. */
proctype Listener(byte me; chan out; chan in) {
  byte k;
  do
  :: ended[me] < OPERATIONS ->
    if
    :: out ! POST(me, ended[me]);
    :: out ! REPORT(me, 0);
    fi;
    if
    :: in ? RESULT(k) -> d_step { End(me, k, 1) }
    :: in ? PLAN(k) -> d_step { End(me, k, 2) }
    fi
  :: else -> break
  od
}

/* Shared by speakers. `own`: whether their current operation is posted (1) or reported (2). */
inline Speak(me, far, near) {
  if
  :: own == 1 && !told && (heard > ended[me]
#ifdef BROKEN_HOST
     || true
#endif
     ) -> told = true; far ! HOST(me, ended[me]);
  :: else -> skip
  fi;
  if
  :: own == 1 && told && hosts > ended[me] -> near ! RESULT(ended[me]); End(me, ended[me], 1); own = 0; told = false;
  :: else -> skip
  fi
}

/* A speaker's posts are a number, because all operations before that one have ended, with posts or
 * without. */
proctype Coordinator() {
  byte k; byte member; byte operation;
  byte own; bool told; byte heard; byte hosts;
  do
  :: atomic { own == 0 && ended[0] < OPERATIONS ->
      told = false;
      if
      :: own = 1; Count(0, ended[0], true)
      :: own = 2; Count(0, 0, false)
      fi;
      Speak(0, to2, to1)
    }
  :: atomic { from1 ? POST(member, operation) ->
      heard = operation + 1;
      Count(member, operation, true);
      Speak(0, to2, to1)
    }
  :: atomic { from1 ? REPORT(member, operation) -> Count(member, 0, false) }
  :: atomic { from2 ? HOST(member, operation) ->
      hosts = operation + 1;
      Speak(0, to2, to1)
    }
  :: atomic { from2 ? POST(member, operation) -> Count(member, operation, true) }
  :: atomic { past2 ? POST(member, operation) -> Count(member, operation, true) }
  :: atomic { from2 ? REPORT(member, operation) -> Count(member, 0, false) }
  :: said[0] + said[1] + said[2] + said[3] == 4 * OPERATIONS && ended[0] == OPERATIONS -> break
  od
}

#ifdef BROKEN_ORDER
#define TELL past2
#else
#define TELL from2
#endif

proctype Speaker() {
  byte k; byte member; byte operation;
  byte own; bool told; byte heard; byte hosts;
  do
  :: atomic { own == 0 && ended[2] < OPERATIONS ->
      told = false;
      if
      :: own = 1; TELL ! POST(2, ended[2])
      :: own = 2; from2 ! REPORT(2, 0)
      fi;
      Speak(2, from2, to3)
    }
  :: atomic { from3 ? POST(member, operation) ->
      heard = operation + 1;
#ifdef BROKEN_SILENCE
      if
      :: own == 1 -> TELL ! POST(member, operation)
      :: else -> skip
      fi;
#else
      TELL ! POST(member, operation);
#endif
      Speak(2, from2, to3)
    }
  :: atomic { from3 ? REPORT(member, operation) -> from2 ! REPORT(member, 0) }
  :: atomic { to2 ? HOST(member, operation) ->
      hosts = operation + 1;
      Speak(2, from2, to3)
    }
  :: atomic { to2 ? PLAN(member, k) -> to3 ! PLAN(k); assert(own != 0); End(2, k, 2); own = 0 }
  :: ended[2] == OPERATIONS && ended[3] == OPERATIONS -> break
  od
}

init {
  atomic {
    run Coordinator();
    run Speaker();
    run Listener(1, from1, to1);
    run Listener(3, from3, to3);
  }
}
