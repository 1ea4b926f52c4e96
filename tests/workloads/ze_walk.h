/*
 * Call paths that differ: `walk<PATH, DEPTH>` calls `walk<PATH, DEPTH - 1>`
 * and so on down to `walk<PATH, 0>`, which runs an action. One function each.
 */
#ifndef ZE_WALK_H
#define ZE_WALK_H

#include <utility>

/* The action and something that every frame changes after its call returns, so
 * that no call is the last thing a function does. */
template <typename A> struct Walk {
	A &action;
	unsigned long sum = 0;
};

template <int Path, int Depth, typename A>
__attribute__((noinline, noclone)) unsigned long walk(Walk<A> &w)
{
	if constexpr (Depth == 0)
		w.action(Path);
	else
		w.sum += walk<Path, Depth - 1>(w);
	return w.sum + Depth;
}

constexpr int WALK_PATHS = 32;
constexpr int WALK_DEPTH = 30;

template <typename A, int... Path> void walk_path(int path, Walk<A> &w, std::integer_sequence<int, Path...>)
{
	((Path == path ? static_cast<void>(walk<Path, WALK_DEPTH>(w)) : void()), ...);
}

/* Runs the action from the bottom of path 0 .. WALK_PATHS - 1. */
template <typename A> void walk_path(int path, A action)
{
	Walk<A> w{action};
	walk_path(path, w, std::make_integer_sequence<int, WALK_PATHS>());
}

#endif
