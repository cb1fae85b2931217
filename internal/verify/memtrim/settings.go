package memtrim

// Setting is a variable of the environment that Go's runtime goes by.
type Setting struct{ Name, Value string }

// Settings are for processes that rest after each of some hundred requests a second. They save a third of the processor time or more:
//   - One processor is enough. A second one would be woken up for each request, to look for work.
//   - The thread that watches over all others looks every 10 ms, instead of going to sleep and being woken up by each request, to look every
//     20 µs until it is over. It stays awake as long as there is a time after which it is to print what the scheduler does: here 24 days.
func Settings() []Setting {
	return []Setting{{Name: "GOMAXPROCS", Value: "1"}, {Name: "GODEBUG", Value: "schedtrace=2147483647"}}
}
