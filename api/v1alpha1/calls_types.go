package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TierSpec is one class of Services. A Service belongs to the first tier that names it under services, else to the first
// whose namespaces or selector match. Its annotation replumb.dev/tier comes before both.
type TierSpec struct {
	// Name of the tier.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	Name string `json:"name"`

	// Selector matches labels of Services. With namespaces as well, both must match.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Namespaces whose Services belong to the tier.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Namespaces []string `json:"namespaces,omitempty"`

	// Services by namespace/name.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Services []string `json:"services,omitempty"`

	// Pause is how long to wait after the tier.
	// +optional
	Pause *metav1.Duration `json:"pause,omitempty"`
}

// TierLookup asks for tiers: one JSON request with all Services in question, one JSON answer.
type TierLookup struct {
	Action `json:",inline"`
}

// Action is a call of something outside. Exactly one of exec and http.
//
// +kubebuilder:validation:ExactlyOneOf=exec;http
type Action struct {
	// Exec runs a program: the request on its stdin, the answer on its stdout.
	// +optional
	Exec *ExecAction `json:"exec,omitempty"`

	// HTTP posts the request; the answer is the response.
	// +optional
	HTTP *HTTPAction `json:"http,omitempty"`

	// Timeout of the call. Default: 30s.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// ExecAction is a program on the machine where replumb runs.
type ExecAction struct {
	// Command with its arguments. No shell is involved.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Command []string `json:"command"`
}

// HTTPAction is a URL that JSON is posted to. Exactly one of url and urlFromEnv.
//
// +kubebuilder:validation:ExactlyOneOf=url;urlFromEnv
type HTTPAction struct {
	// URL, with scheme http or https.
	// +optional
	URL string `json:"url,omitempty"`

	// URLFromEnv names the environment variable of replumb that holds the URL: one with a secret in it does not belong
	// into a Migration.
	// +optional
	URLFromEnv string `json:"urlFromEnv,omitempty"`
}

// Hook is called at certain moments of a run.
type Hook struct {
	// Name of the hook.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	Name string `json:"name"`

	// When it is called.
	When HookMoment `json:"when"`

	// Of names the phases or tiers it is called for, or the tiers of the batches. Default: all.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Of []string `json:"of,omitempty"`

	Action `json:",inline"`

	// OnFailure Stop ends the run; Continue only tells. Default: Stop.
	// +optional
	OnFailure FailurePolicy `json:"onFailure,omitempty"`
}

// HookMoment is when a hook is called.
//
// +kubebuilder:validation:Enum=BeforePhase;AfterPhase;BeforeTier;AfterTier;BeforeBatch;AfterBatch
type HookMoment string

// The moments of hooks.
const (
	BeforePhase HookMoment = "BeforePhase"
	AfterPhase  HookMoment = "AfterPhase"
	BeforeTier  HookMoment = "BeforeTier"
	AfterTier   HookMoment = "AfterTier"
	BeforeBatch HookMoment = "BeforeBatch"
	AfterBatch  HookMoment = "AfterBatch"
)

// FailurePolicy is what follows from a call that failed.
//
// +kubebuilder:validation:Enum=Stop;Continue
type FailurePolicy string

// The failure policies.
const (
	FailureStop     FailurePolicy = "Stop"
	FailureContinue FailurePolicy = "Continue"
)

// Notifier posts what happens: phases that begin and end, and what stops a run.
type Notifier struct {
	HTTPAction `json:",inline"`

	// Format JSON posts the event; Slack posts {"text": ...}, which Slack and its like take. Default: JSON.
	// +optional
	Format NotifyFormat `json:"format,omitempty"`

	// Timeout of one call. Default: 10s.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// OnFailure Stop ends the run when nobody can be told. Default: Continue.
	// +optional
	OnFailure FailurePolicy `json:"onFailure,omitempty"`
}

// NotifyFormat is the body of a notification.
//
// +kubebuilder:validation:Enum=JSON;Slack
type NotifyFormat string

// The formats of notifications.
const (
	NotifyJSON  NotifyFormat = "JSON"
	NotifySlack NotifyFormat = "Slack"
)

// Window is a stretch of time on some days of the week.
type Window struct {
	// Days it begins on: Mon, Tue, Wed, Thu, Fri, Sat, Sun. Default: every day.
	// +optional
	// +kubebuilder:validation:items:Enum=Mon;Tue;Wed;Thu;Fri;Sat;Sun
	// +kubebuilder:validation:MaxItems=7
	Days []string `json:"days,omitempty"`

	// Start and End as HH:MM. An end that is not after the start is on the next day.
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	Start string `json:"start"`
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	End string `json:"end"`

	// TimeZone by its name in the IANA database, such as Europe/Berlin. Default: UTC.
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
}
