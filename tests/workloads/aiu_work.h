/* What the parts of aiu_work share. */
#pragma once

#include "../virtual/aiu/aiu.h"
#include "../virtual/aiu/flex.hpp"
#include "work.h"

#include <map>
#include <mutex>
#include <string>

extern "C" {
void vaiu_set_hook(void (*hook)(const char *function));
void vaiu_abandon_calls(void);
void vaiu_flush_truth(void);
}

struct Options {
	std::string mode;
	unsigned long launches = 100; /* --launches: of each thread */
	unsigned threads = 1, streams = 1;
	unsigned ranks = 1;    /* processes, started by this one */
	unsigned late = 0;     /* launches before libaiupti is loaded */
	unsigned buffer = 0;   /* bytes of an activity buffer; 0: 1 MiB */
	unsigned buffers = 0;  /* most buffers handed out; 0: any number */
	unsigned pause_us = 0; /* --pause-us: between launches */
	bool wait = false;     /* for a line on stdin before the first call */
	bool early = false;    /* load libaiupti before the runtime begins */
	bool paths = false;    /* work as in mode paths, whatever the mode records */
	std::string library = "libaiupti.so";
	/* A file for the raw activity buffers, each after its size (u64). */
	std::string dump;
};

/* Counts by name, from any thread. */
class Counts {
      public:
	void add(const std::string &name, unsigned long n = 1)
	{
		std::lock_guard<std::mutex> guard(lock_);
		counts_[name] += n;
	}
	std::string json();

      private:
	std::mutex lock_;
	std::map<std::string, unsigned long> counts_;
};
extern Counts calls, launches, records;

using Stream = std::shared_ptr<flex::RuntimeStream>;

/* A launch from the function it is inlined into. */
void launch_kernel(Stream &stream, const std::string &kernel);
void every_function(Stream &stream);

/* aiu_records.cpp: the activity API, loaded when it is wanted. */
struct Account {
	unsigned long buffers = 0, dropped = 0, errors = 0;
};
void activities_load(const Options &options);
void activities_enable(bool on);
Account activities_finish();

/* aiu_hook.cpp: leaving API calls in unusual ways. */
unsigned long leave_every_function(const Options &options, Stream &stream);
