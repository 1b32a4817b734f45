package races

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write orders.txt from the library's sources instead of comparing with it")

const (
	ordersPath  = "orders.txt"
	ordersIntro = `# The library's atomic accesses with their memory orders, its fences, its wake-ups, and where it starts threads, in the order of the sources. A sanitizer sees an order
# that is too weak between threads of a process; between processes, in shared memory, nothing does on x86. So a change here is for a review:
# an acquire needs its release, a word is stored after what it publishes, and who changes what another sleeps on wakes it after that. A thread starts with all signals
# blocked, because they belong to the application.
# Written by: go test ./client/tests/races -run TheLibrarysOrders -update
`
)

var (
	comment = regexp.MustCompile(`//[^\n]*`)
	// An access, a fence or a wake-up, up to its opening parenthesis. The word of a std::atomic comes before the name.
	access = regexp.MustCompile(`\b(__atomic_\w+|futexWakeAll|pthread_cond_broadcast|pthread_cond_signal|nudgeControlThread|pthread_sigmask|pthread_create)\(` +
		`|([\w.>\[\]-]+)(?:\.|->)(load|store|exchange|fetch_add|fetch_sub|compare_exchange_strong|compare_exchange_weak)\(`)
	order  = regexp.MustCompile(`__ATOMIC_([A-Z_]+)|memory_order_([a-z_]+)`)
	spaces = regexp.MustCompile(`\s+`)
)

// ordersOf lists what the record has of one source.
func ordersOf(name, source string) (lines []string) {
	source = comment.ReplaceAllString(source, "")
	for _, at := range access.FindAllStringSubmatchIndex(source, -1) {
		arguments := argumentsFrom(source, at[1])
		part := func(i int) string {
			if at[2*i] < 0 {
				return ""
			}
			return source[at[2*i]:at[2*i+1]]
		}
		what := part(1)
		word := first(arguments)
		switch {
		case what == "":
			what, word = part(3), part(2)
		case strings.HasSuffix(what, "_fence"):
			word = ""
		}
		orders := "" // of a std::atomic: seq_cst
		for _, o := range order.FindAllStringSubmatch(arguments, -1) {
			orders += " " + strings.ToLower(o[1]+o[2])
		}
		word = spaces.ReplaceAllString(strings.TrimSpace(word), " ")
		lines = append(lines, strings.TrimSpace(name+": "+strings.TrimPrefix(what, "__atomic_")+" "+word)+orders)
	}
	return lines
}

// argumentsFrom is the text from behind an opening parenthesis to the closing one.
func argumentsFrom(source string, begin int) string {
	depth := 1
	for i := begin; i < len(source); i++ {
		switch source[i] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return source[begin:i]
			}
		}
	}
	return source[begin:]
}

// first is the first of some arguments.
func first(arguments string) string {
	depth := 0
	for i, c := range arguments {
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ',':
			if depth == 0 {
				return arguments[:i]
			}
		}
	}
	return arguments
}

func TestTheLibrarysOrdersAreThoseOfTheRecord(t *testing.T) {
	var lines []string
	for _, folder := range []string{"base", "session", "comm", "memory", "collectives", "ep", "kv", "device", "device/cpu", "device/cuda", "../kernels/host"} {
		for _, pattern := range []string{"*.cc", "*.h"} {
			files, err := filepath.Glob(filepath.Join("../..", folder, pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				source, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				lines = append(lines, ordersOf(strings.TrimPrefix(folder, "../")+"/"+filepath.Base(file), string(source))...)
			}
		}
	}
	if len(lines) < 100 {
		t.Fatalf("%d accesses were found", len(lines))
	}
	now := ordersIntro + strings.Join(lines, "\n") + "\n"
	if *update {
		if err := os.WriteFile(ordersPath, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	recorded, err := os.ReadFile(ordersPath)
	if err != nil {
		t.Fatal(err)
	}
	if string(recorded) == now {
		return
	}
	before := strings.Split(string(recorded), "\n")
	for i, line := range strings.Split(now, "\n") {
		if i >= len(before) || before[i] != line {
			t.Fatalf("%s, line %d, is %q, the sources have %q: review the change, and write the record with -update", ordersPath, i+1,
				append(slices.Clone(before), make([]string, i+1)...)[i], line)
		}
	}
	t.Fatalf("%s has more lines than the sources: review the change, and write the record with -update", ordersPath)
}
