module github.com/replumb/replumb/lab/components/cilium

go 1.26.0

require (
	github.com/cilium/cilium v1.20.2
	// Cilium's own is a later commit that not every module proxy serves. Labs have no BGP.
	github.com/osrg/gobgp/v4 v4.8.0
)

// Neither does every proxy serve this one.
replace sigs.k8s.io/mcs-api/controllers => ./mcs
