package memtrim

// Setting is a variable of the environment that Go's runtime goes by.
type Setting struct{ Name, Value string }

// Settings are for processes that rest between some hundred requests a second, and save a third of
// the CPU time:
//
//   - one processor: a second one would wake for each request to look for work;
//   - the monitor thread looks every 10 ms instead of waking for each request and polling every 20
//     µs. It stays awake while a scheduler trace is due, here after 24 days.
func Settings() []Setting {
	return []Setting{{Name: "GOMAXPROCS", Value: "1"}, {Name: "GODEBUG", Value: "schedtrace=2147483647"}}
}
