// Package offline keeps the reads of check, plan and ranges in one file, and answers the same
// clients from it as the API server did. No value of a Secret is in it.
package offline

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/replumb/replumb/internal/kube/apiserver"
)

// Format is the version of archives that this build writes, and the last one that it reads.
const Format = 1

// Names of the entries. The first says what the file is, and the last proves that nothing is
// missing before it.
const (
	headName     = "snapshot.json"
	manifestName = "manifest.json"
	answersName  = "answers.json"
	objectsDir   = "objects/"
)

// kindOfFile tells an archive from other files of the same form.
const kindOfFile = "replumb.dev/snapshot"

// Head is what an archive is of.
type Head struct {
	Kind string `json:"kind"`
	// Format is the version of the archive, and Replumb that of the program that wrote it.
	Format  int       `json:"format"`
	Replumb string    `json:"replumb"`
	Time    time.Time `json:"time"`
	// Server is host:port of the API server, Context its name in the kubeconfig, and UID the
	// cluster's, if readable.
	Server     string `json:"server"`
	Context    string `json:"context,omitempty"`
	UID        string `json:"uid,omitempty"`
	Kubernetes string `json:"kubernetes"`
}

// Manifest is the end of an archive.
type Manifest struct {
	// Counts are the numbers of objects, by their resource, such as pods or
	// ippools.crd.projectcalico.org. Resources that have objects in several versions are counted
	// once.
	Counts map[string]int `json:"counts"`
	// NotRead are resources that the user may not list, and groups without discovery.
	NotRead []string `json:"notRead,omitempty"`
	// Entries is how many there are before this one, and SHA256 the checksum of their names and
	// contents.
	Entries int    `json:"entries"`
	SHA256  string `json:"sha256"`
}

func (m *Manifest) Objects() int {
	n := 0
	for _, c := range m.Counts {
		n += c
	}
	return n
}

func (m *Manifest) Kinds() []string {
	return slices.Sorted(maps.Keys(m.Counts))
}

// page is one entry of objects: part of a collection, or one object that was asked for by its name.
type page struct {
	Group    string `json:"group,omitempty"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	Kind     string `json:"kind,omitempty"`
	// Namespace that was asked for alone; empty for all. Name of the one object that was asked for;
	// empty for a collection.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Refused is what the API server answered instead, with its HTTP status Code.
	Refused json.RawMessage   `json:"refused,omitempty"`
	Code    int               `json:"code,omitempty"`
	Items   []json.RawMessage `json:"items,omitempty"`
}

func (p *page) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: p.Group, Version: p.Version, Resource: p.Resource}
}

// answers are what was asked of the API server beside objects.
type answers struct {
	// Paths by what was asked for, such as /version.
	Paths map[string]answer `json:"paths"`
	// Access is what the authorizer said.
	Access  []accessReview       `json:"access"`
	Servers []apiserver.Recorded `json:"servers,omitempty"`
	// Ranges are the answers to Services with an address that is in none, by their clusterIP, where
	// API servers have a flag and no ServiceCIDRs.
	Ranges map[string]answer `json:"ranges,omitempty"`
}

type answer struct {
	Code int `json:"code"`
	// Type is the media type of the body; empty for JSON.
	Type string `json:"type,omitempty"`
	Body string `json:"body"`
}

// accessReview is what the authorizer said to one question.
type accessReview struct {
	Spec    authorizationv1.SelfSubjectAccessReviewSpec `json:"spec"`
	Allowed bool                                        `json:"allowed"`
	Reason  string                                      `json:"reason,omitempty"`
}

// Error says that a file is no archive that can be read.
type Error struct {
	// Problem is why, and Hint what to do.
	Problem, Hint string
}

func (e *Error) Error() string { return e.Problem }

func (e *Error) Advice() string { return e.Hint }

func foreign(format string, args ...any) error {
	return &Error{
		Problem: "the file is no snapshot of replumb's: " + fmt.Sprintf(format, args...),
		Hint:    "replumb snapshot --file FILE writes one",
	}
}

func damaged(format string, args ...any) error {
	return &Error{
		Problem: "the snapshot is cut off or damaged: " + fmt.Sprintf(format, args...),
		Hint:    "copy it once more, or take another one: replumb snapshot --file FILE",
	}
}
