// Package lists shortens and joins lists for people.
package lists

import (
	"fmt"
	"strings"
)

// Strings has the text of each value.
func Strings[T fmt.Stringer](all []T) []string {
	var out []string
	for _, v := range all {
		out = append(out, v.String())
	}
	return out
}

// Join puts the texts of values together.
func Join[T fmt.Stringer](all []T, separator string) string {
	return strings.Join(Strings(all), separator)
}

// FirstN names the first n, and counts the others: "a, b and 3 more".
func FirstN(all []string, n int) string {
	if len(all) <= n {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:n], ", "), len(all)-n)
}

// Limit is a list of the first n, and of "and 3 more" if there are others.
func Limit(all []string, n int) []string {
	if len(all) <= n {
		return all
	}
	return append(all[:n:n], fmt.Sprintf("and %d more", len(all)-n))
}
