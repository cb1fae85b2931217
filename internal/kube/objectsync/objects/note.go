package objects

// Note says something of an object.
type Note struct {
	Ref  Ref
	What string
}
