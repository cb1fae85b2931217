package admission

import "github.com/replumb/replumb/api/v1alpha1"

// Advice is what to do about an error that is a refusal by someone who is named; empty for others.
func Advice(err error) string {
	const again = "; then run the same command again: it carries on"
	by := Of(err)
	switch {
	case by == nil || by.By == Unnamed:
		return ""
	case by.Down:
		return "the " + by.By + " cannot be asked: repair what it calls, or delete its configuration" + again
	case by.Quota:
		return "raise the quota, or make room in it" + again
	}
	return "exempt who runs replumb, and namespace " + v1alpha1.SystemNamespace + ", from " + by.By + " while the migration lasts, " +
		"or give the object what it asks for" + again
}
