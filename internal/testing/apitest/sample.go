package apitest

import (
	"os"
	"strconv"
	"testing"
)

// Every is how many like cases a long test may take one of: 1, all, unless REPLUMB_TEST_EVERY says otherwise.
func Every(t testing.TB) int {
	t.Helper()
	text, set := os.LookupEnv("REPLUMB_TEST_EVERY")
	if !set {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("REPLUMB_TEST_EVERY is %q and not a number from 1", text)
	}
	return n
}
