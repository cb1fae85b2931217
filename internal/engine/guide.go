package engine

// Guide is a step that waits for people and can tell them what to do. The runner hands it out once per run, when it first
// has to wait.
type Guide interface {
	Guide() string
}
