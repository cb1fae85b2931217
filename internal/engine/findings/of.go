package findings

// Of makes checks of a whole of those that look at one part of it.
func Of[Whole, Part any](part func(Whole) Part, checks []Check[Part]) []Check[Whole] {
	all := make([]Check[Whole], len(checks))
	for i, c := range checks {
		all[i] = Check[Whole]{
			Code: c.Code, Severity: c.Severity, Group: c.Group, Claim: c.Claim, Why: c.Why, Fix: c.Fix,
			Run: func(in Whole) []Result { return c.Run(part(in)) },
		}
	}
	return all
}
