/* Who holds one partition while nodes join, leave and crash: handover and claim as
 * node/authority does them, for three nodes, checked by run.sh in this directory.
 *
 * Node 1 holds, node 0 is active with it, and node 2 is about to join knowing node 0 alone.
 * Placement gives the partition to the highest of the active nodes that a node knows, so
 * each node has its own, lagging view of who should hold it. Which events may happen is
 * chosen by run.sh: JOIN, LEAVE and LEAVE2 (of a node), CRASH (of any one node), BREAK (any one
 * stream ends and loses what was under way on it: a lost acknowledgement, or a lost
 * handover). WITHOUT_CONSENT, ANY_EPOCH, THAWS and YIELDS_FROZEN take a rule away, to see
 * that the model finds it missing.
 *
 * A stream is a channel, read in order and to its end. A node that has crashed is out for
 * another one once its stream has been read to the end, at any later time. Every message
 * names the members that its sender knows, with their states.
 *
 * Fairness: each receiver and each clock is a process of its own and takes its steps in a
 * fixed order, so weak fairness (a process that could always go on does at some time) is
 * all that liveness needs.
 *
 * Not modelled: buckets and copies (the receiver of a handover always has a complete copy),
 * restarts, splits and false deaths, processes that stand still, merging. The schedules of
 * node/authority's tests play those at random.
 */

#define N 3
mtype:note = { hello, announce, handover, accepted, refused, ask, answer, goodbye };
mtype:role = { none, claiming, holds, frozen };
#define JOINING 1
#define ACTIVE 2
#define LEAVING 3
#define LEFT 4

/* An epoch is counter*4 + boot, so that epochs compare as (counter, boot) do. Claims have
 * even counters, handovers odd ones. */
#define BOOT(e) ((e) & 3)
#define COUNTER(e) ((e) >> 2)
#define HANDED(e, to) (((((COUNTER(e) + 1) | 1)) << 2) + (to))
#define CLAIMED(e, by) (((((COUNTER(e) | 1) + 1)) << 2) + (by))
#define MAX(a, b) ((a) > (b) -> (a) : (b))

#define AT(n, m) ((n) * N + (m))

/* kind, epoch, second epoch or claim, yes, states of all members as 3 bits each */
chan stream[9] = [6] of { mtype:note, byte, byte, bit, short };

bool dead[N];        /* crashed or ended: the peer port refuses */
byte state[9];       /* by node and member: 0 is unknown; of itself: its own */
bool out[9];
bool heard[9];           /* the stream from the member is open and said hello */
bool up[9];          /* the stream to the member is open */
mtype:role role[N] = none;
byte epoch[N];
byte last[N];
byte to[N];          /* while frozen */
byte then[N];       /* the epoch that it is handed over in */
bool offered[N];
byte taken[9];       /* by node and sender */
byte denied[9];
byte claim[N];       /* number, 0 to 3 */
bool asked[9];
bool said[9];        /* has answered */
bool no[N];
byte newest;         /* of all epochs so far */
bool settled;        /* nothing more will happen from outside */

#define ISOUT(n, e) (BOOT(e) == n || out[AT(n, BOOT(e))] || state[AT(n, BOOT(e))] == 0)
#define HOLDS(n) (role[n] == holds || role[n] == frozen)
#define MEMBER(n, m) (m != n && state[AT(n, m)] != 0 && !out[AT(n, m)])
#define PLACED(n, m) (state[AT(n, m)] == ACTIVE && (m == n || !out[AT(n, m)]))
#define OWNER(n) (PLACED(n, 2) -> 2 : (PLACED(n, 1) -> 1 : (PLACED(n, 0) -> 0 : N)))
#define SEES(n, m) ((m == n || !out[AT(n, m)]) -> state[AT(n, m)] : 0)
#define LIST(n) (SEES(n, 0) + (SEES(n, 1) << 3) + (SEES(n, 2) << 6))
#define HELD (role[0] == holds && !dead[0] || role[1] == holds && !dead[1] || role[2] == holds && !dead[2])
#define ABLE(n) (!dead[n] && state[AT(n, n)] <= ACTIVE && state[AT(n, n)] > 0)
#define NOBODY (!ABLE(0) && !ABLE(1) && !ABLE(2))

hidden short seen;

inline send(n, m, kind, e, f, y) {
	if
	:: m != n && up[AT(n, m)] && !dead[m] ->
		assert(nfull(stream[AT(n, m)]));
		seen = LIST(n);
		stream[AT(n, m)]!kind(e, f, y, seen)
	:: else
	fi
}

inline broadcast(n, kind, e) {
	send(n, 0, kind, e, 0, 0);
	send(n, 1, kind, e, 0, 0);
	send(n, 2, kind, e, 0, 0)
}

inline learn(n, m, s) {
	if
	:: m != n && (s) > state[AT(n, m)] && !((s) == LEFT && state[AT(n, m)] == 0) -> state[AT(n, m)] = s
	:: else
	fi
}

/* What nobody reads any more is made the same everywhere, so that there are fewer states. */
inline unasked(n) {
	asked[AT(n, 0)] = false; asked[AT(n, 1)] = false; asked[AT(n, 2)] = false;
	said[AT(n, 0)] = false; said[AT(n, 1)] = false; said[AT(n, 2)] = false;
	no[n] = false
}

inline emptied(a, b) {
	do
	:: nempty(stream[AT(a, b)]) -> stream[AT(a, b)]?_, _, _, _, _
	:: else -> break
	od
}

inline ends(n) {
	dead[n] = true;
	emptied(0, n); emptied(1, n); emptied(2, n);
	unasked(n);
	claim[n] = 0;
	then[n] = 0;
	offered[n] = false
}

inline hold(n, e) {
	unasked(n);
	assert(role[0] != holds || dead[0] || n == 0);
	assert(role[1] != holds || dead[1] || n == 1);
	assert(role[2] != holds || dead[2] || n == 2);
	assert((e) > newest);
	newest = e;
	role[n] = holds;
	epoch[n] = e;
	last[n] = e;
	broadcast(n, announce, epoch[n])
}

inline thaw(n) {
	assert(role[0] != holds || dead[0] || n == 0);
	assert(role[1] != holds || dead[1] || n == 1);
	assert(role[2] != holds || dead[2] || n == 2);
	role[n] = holds
}

inline release(n) {
	role[n] = none;
	epoch[n] = 0;
	offered[n] = false;
	last[n] = MAX(last[n], then[n])
}

inline giveUp(n) {
	role[n] = none;
	unasked(n)
}

inline held(n, x, e) {
	if
	:: (e) == 0
	:: (e) != 0 && role[n] == frozen && to[n] == x && then[n] == (e) -> release(n)
#ifdef YIELDS_FROZEN
	:: (e) != 0 && role[n] == frozen && to[n] == x && then[n] < (e)
	:: (e) != 0 && HOLDS(n) && !(role[n] == frozen && to[n] == x) && (e) > epoch[n] -> assert(false)
#else
	:: (e) != 0 && role[n] == frozen && then[n] < (e) /* the answer of the next holder will tell */
	:: (e) != 0 && (role[n] == holds || role[n] == frozen && then[n] > (e)) && (e) > epoch[n] -> assert(false) /* two holders */
#endif
	:: (e) != 0 && role[n] == claiming && last[n] <= (e) -> giveUp(n)
	:: else
	fi;
	last[n] = MAX(last[n], e)
}

inline offerTo(n) {
	offered[n] = true;
	send(n, to[n], handover, then[n], epoch[n], 0)
}

inline handed(n, x, e, from) {
	if
#ifdef ANY_EPOCH
	:: state[AT(n, n)] < LEAVING ->
#else
	:: e > taken[AT(n, x)] && e > denied[AT(n, x)] && COUNTER(e) > COUNTER(last[n]) &&
		!(last[n] > from && !ISOUT(n, last[n])) && state[AT(n, n)] < LEAVING ->
#endif
		taken[AT(n, x)] = e;
		send(n, x, accepted, e, 0, 0);
		hold(n, e)
	:: else ->
		if
		:: e <= taken[AT(n, x)] -> send(n, x, accepted, e, 0, 0)
		:: else -> denied[AT(n, x)] = e; send(n, x, refused, e, 0, 0)
		fi
	fi
}

inline wasAsked(n, x, e, number) {
	y = !HOLDS(n) && last[n] <= e;
	last[n] = MAX(last[n], e);
	y = y && (BOOT(last[n]) == x || ISOUT(n, last[n]));
	y = y && (role[n] != claiming || x < n);
	if
	:: y && role[n] == claiming -> giveUp(n)
	:: else
	fi;
	send(n, x, answer, last[n], number, y)
}

inline answered(n, x, e, number, yes) {
	if
	:: role[n] == claiming && claim[n] == number ->
		said[AT(n, x)] = true;
		no[n] = no[n] || !yes || e > last[n]
	:: else
	fi;
	last[n] = MAX(last[n], e)
}

/* greeted: a stream from x is open. What x did not say to have taken, it may not have
 * received, or its answer was lost. */
inline greeted(n, x, e, f) {
	heard[AT(n, x)] = true;
	last[n] = MAX(last[n], f);
	held(n, x, e);
	if
	:: role[n] == frozen && to[n] == x -> offered[n] = false
	:: else
	fi;
	asked[AT(n, x)] = false
}

/* hears: n deals with one message from x after another. */
proctype hears(byte n; byte x) {
	mtype:note kind; byte e; byte f; bit y; short list;
end:	do
	:: dead[n] -> break
	:: atomic { !dead[n] && nempty(stream[AT(x, n)]) ->
		stream[AT(x, n)]?kind(e, f, y, list);
		if
		:: kind == hello || heard[AT(n, x)] ->
			learn(n, 0, list & 7);
			learn(n, 1, (list >> 3) & 7);
			learn(n, 2, (list >> 6) & 7);
			if
			:: kind == hello -> greeted(n, x, e, f)
			:: kind == announce -> held(n, x, e)
			:: kind == handover -> handed(n, x, e, f)
			:: kind == accepted ->
				if
				:: role[n] == frozen && to[n] == x && then[n] == e -> release(n)
				:: else
				fi
			:: kind == refused ->
				if
				:: role[n] == frozen && to[n] == x && then[n] == e -> thaw(n)
				:: else
				fi
			:: kind == ask -> wasAsked(n, x, e, f)
			:: kind == answer -> answered(n, x, e, f, y)
			:: kind == goodbye -> state[AT(n, x)] = LEFT
			fi
		:: else
		fi;
		kind = hello; e = 0; f = 0; y = 0; list = 0
		}
	od
}

#define UNOPENED(n, m) (MEMBER(n, m) && !up[AT(n, m)] && !dead[m])
#define ENDED(n, m) (m != n && state[AT(n, m)] != 0 && !out[AT(n, m)] && dead[m] && empty(stream[AT(m, n)]))
#define MET(n, m) (!MEMBER(n, m) || heard[AT(n, m)])
#ifdef WITHOUT_CONSENT
#define ASKABLE(n, m) false
#else
#define ASKABLE(n, m) (MEMBER(n, m) && up[AT(n, m)] && !asked[AT(n, m)] && !said[AT(n, m)])
#endif
#define DONE(n, m) (!MEMBER(n, m) || said[AT(n, m)])
#ifdef WITHOUT_CONSENT
#define ALLDONE(n) true
#else
#define ALLDONE(n) (DONE(n, 0) && DONE(n, 1) && DONE(n, 2))
#endif
/* A claim is not tried again before what it has sent was dealt with. */
#define HEARD(n, m) (m == n || dead[m] || empty(stream[AT(n, m)]))
/* A second of doubt lets a node ask even if it believes that the last holder is there. It
 * is long, so here it is only over once nobody holds the partition. */
#define VACANT(n) (role[n] == none && state[AT(n, n)] == ACTIVE && OWNER(n) == n && (ISOUT(n, last[n]) || !HELD && settled) && HEARD(n, 0) && HEARD(n, 1) && HEARD(n, 2))

inline open(n, m) {
	up[AT(n, m)] = true;
	if
	:: role[n] == holds -> send(n, m, hello, epoch[n], last[n], 0)
	:: else -> send(n, m, hello, 0, last[n], 0)
	fi
}

inline sees(n, m) { heard[AT(n, m)] = false; out[AT(n, m)] = true }

inline question(n, m) { asked[AT(n, m)] = true; send(n, m, ask, last[n], claim[n], 0) }

/* clock: what n does of itself, one thing at a time. */
proctype clock(byte n) {
	byte owner;
end:	do
	:: dead[n] -> break
	:: atomic { !dead[n] && UNOPENED(n, 0) -> open(n, 0) }
	:: atomic { !dead[n] && UNOPENED(n, 1) -> open(n, 1) }
	:: atomic { !dead[n] && UNOPENED(n, 2) -> open(n, 2) }
	:: atomic { !dead[n] && ENDED(n, 0) -> sees(n, 0) }
	:: atomic { !dead[n] && ENDED(n, 1) -> sees(n, 1) }
	:: atomic { !dead[n] && ENDED(n, 2) -> sees(n, 2) }
	:: atomic { !dead[n] && state[AT(n, n)] == JOINING && MET(n, 0) && MET(n, 1) && MET(n, 2) && (heard[AT(n, 0)] || heard[AT(n, 1)]) ->
		state[AT(n, n)] = ACTIVE;
		broadcast(n, announce, 0)
		}
	:: atomic { !dead[n] && role[n] == frozen && out[AT(n, to[n])] -> release(n) }
	:: atomic { !dead[n] && role[n] == holds && OWNER(n) != n && OWNER(n) < N && heard[AT(n, OWNER(n))] && up[AT(n, OWNER(n))] ->
		owner = OWNER(n);
		to[n] = owner;
		then[n] = HANDED(MAX(epoch[n], then[n]), owner);
		role[n] = frozen;
		offerTo(n);
		owner = 0
		}
	:: atomic { !dead[n] && role[n] == frozen && !offered[n] && up[AT(n, to[n])] && !out[AT(n, to[n])] -> offerTo(n) }
	:: atomic { !dead[n] && VACANT(n) ->
		role[n] = claiming;
		claim[n] = (claim[n] + 1) & 3;
		unasked(n)
		}
	:: atomic { !dead[n] && role[n] == claiming && ASKABLE(n, 0) -> question(n, 0) }
	:: atomic { !dead[n] && role[n] == claiming && ASKABLE(n, 1) -> question(n, 1) }
	:: atomic { !dead[n] && role[n] == claiming && ASKABLE(n, 2) -> question(n, 2) }
	:: atomic { !dead[n] && role[n] == claiming && ALLDONE(n) ->
		if
		:: !no[n] && OWNER(n) == n && ISOUT(n, last[n]) -> hold(n, CLAIMED(last[n], n))
		:: else -> giveUp(n)
		fi
		}
	:: atomic { !dead[n] && state[AT(n, n)] == LEAVING && !HOLDS(n) ->
		broadcast(n, goodbye, 0);
		ends(n)
		}
	od
}

/* breaks: the stream from a to b ends and loses what was under way. */
inline breaks(a, b) {
	emptied(a, b);
	up[AT(a, b)] = false;
	heard[AT(b, a)] = false;
	if
	:: role[a] == frozen && to[a] == b ->
		offered[a] = false;
#ifdef THAWS
		thaw(a)
#endif
	:: else
	fi
}


inline leaves(n) {
	state[AT(n, n)] = LEAVING;
	if
	:: role[n] == claiming -> giveUp(n)
	:: else
	fi;
	broadcast(n, announce, 0)
}

#ifdef JOIN
proctype joins() {
	atomic { state[AT(2, 2)] = JOINING; state[AT(2, 0)] = ACTIVE };
	run clock(2)
}
#endif

proctype leave(byte n) {
	if
	:: atomic { !dead[n] && state[AT(n, n)] == ACTIVE -> leaves(n) }
	:: settled
	fi
}

#ifdef CRASH
proctype crash() {
	if
	:: atomic { !dead[0] -> ends(0) }
	:: atomic { !dead[1] -> ends(1) }
	:: atomic { !dead[2] && state[AT(2, 2)] > 0 -> ends(2) }
	:: settled
	fi
}
#endif

#ifdef BREAK
#define WHOLE(a, b) (up[AT(a, b)] && heard[AT(b, a)] && !dead[a] && !dead[b])
proctype lose() {
	if
	:: atomic { WHOLE(0, 1) -> breaks(0, 1) }
	:: atomic { WHOLE(1, 0) -> breaks(1, 0) }
	:: atomic { WHOLE(1, 2) -> breaks(1, 2) }
	:: atomic { WHOLE(2, 1) -> breaks(2, 1) }
	:: atomic { WHOLE(0, 2) -> breaks(0, 2) }
	:: atomic { WHOLE(2, 0) -> breaks(2, 0) }
	:: settled
	fi
}
#endif

/* calm: from some time on, nothing more happens from outside. */
proctype calm() { settled = true }

init {
	atomic {
		state[AT(0, 0)] = ACTIVE; state[AT(0, 1)] = ACTIVE; heard[AT(0, 1)] = true; up[AT(0, 1)] = true;
		state[AT(1, 1)] = ACTIVE; state[AT(1, 0)] = ACTIVE; heard[AT(1, 0)] = true; up[AT(1, 0)] = true;
		role[1] = holds; epoch[1] = 9; last[1] = 9; last[0] = 9; newest = 9;
		run hears(0, 1); run hears(0, 2); run hears(1, 0); run hears(1, 2);
		run hears(2, 0); run hears(2, 1);
		run clock(0); run clock(1);
#ifdef JOIN
		run joins();
#endif
#ifdef LEAVE
		run leave(LEAVE);
#endif
#ifdef LEAVE2
		run leave(LEAVE2);
#endif
#ifdef CRASH
		run crash();
#endif
#ifdef BREAK
		run lose();
#endif
		run calm()
	}
}

ltl found { []<>(HELD || NOBODY) }
