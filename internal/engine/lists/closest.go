package lists

import "strings"

// Closest is the one of several words that another was probably meant for; empty if it may be any.
// Case does not count. A word may leave letters out, or have two of them wrong.
func Closest(word string, all []string) string {
	const most = 2
	typed := strings.ToLower(word)
	best, fewest := "", min(most, len(typed)/2)+1
	for _, one := range all {
		meant := strings.ToLower(one)
		wrong := distance(typed, meant)
		if shortens(typed, meant) {
			wrong = min(wrong, 1)
		}
		if wrong < fewest {
			best, fewest = one, wrong
		}
	}
	return best
}

// shortens reports whether a word begins as another one does, and has nothing but letters of it, in
// their order.
func shortens(word, of string) bool {
	if len(word) < 2 || !strings.HasPrefix(of, word[:1]) {
		return false
	}
	for _, letter := range word {
		i := strings.IndexRune(of, letter)
		if i < 0 {
			return false
		}
		of = of[i+1:]
	}
	return true
}

// distance is how many letters have to be added, taken away or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			same := before
			if a[i] != b[j] {
				same++
			}
			before, row[j+1] = row[j+1], min(same, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
