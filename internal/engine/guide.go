package engine

// Guide is a step that waits for people, with instructions. The runner emits them once per run,
// when the step first waits and has any.
type Guide interface {
	Guide() string
}
