package engine

// Guide is a step that waits for people and can tell them what to do. The runner hands it out once per run, when it first
// has to wait and there is one: a step that cannot tell yet whether people are needed has none.
type Guide interface {
	Guide() string
}
