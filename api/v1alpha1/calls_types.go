package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TierSpec is one class of Services. A Service belongs to the first tier that names it under services, else to the first
// whose namespaces or selector match. Its annotation replumb.dev/tier comes before both.
type TierSpec struct {
	// name of the tier.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self != 'cluster-services'",message="is the name of the tier of the cluster's own Services; give the tier another name, or name a Service of the cluster under services"
	Name string `json:"name"`

	// selector matches labels of Services. With namespaces as well, both must match.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// namespaces whose Services belong to the tier.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	Namespaces []string `json:"namespaces,omitempty"`

	// services by namespace/name.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=127
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	Services []string `json:"services,omitempty"`

	// pause is how long to wait after the tier.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is negative; write a duration such as 60s"
	Pause *metav1.Duration `json:"pause,omitempty"`
}

// TierLookup asks for tiers: one JSON request with all Services in question, one JSON answer.
//
// +kubebuilder:validation:XValidation:rule="!has(self.timeout) || duration(self.timeout) <= duration('10m')",message="is not longer than nothing and at most 10m; write a duration such as 30s",fieldPath=".timeout"
type TierLookup struct {
	Action `json:",inline"`
}

// Action is a call of something outside. Exactly one of exec and http.
//
// +kubebuilder:validation:ExactlyOneOf=exec;http
type Action struct {
	// exec runs a program: the request on its stdin, the answer on its stdout.
	// +optional
	Exec *ExecAction `json:"exec,omitempty"`

	// http posts the request; the answer is the response.
	// +optional
	HTTP *HTTPAction `json:"http,omitempty"`

	// timeout of the call. Hooks and the look-up of tiers: 30s by default, 10m at most. All others: 30m by default, 6h at most.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('6h')",message="is not longer than nothing and at most 6h; write a duration such as 30s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// ExecAction is a program on the machine where replumb runs.
type ExecAction struct {
	// command with its arguments. No shell is involved. A program with a slash in its name is found from the folder of the file
	// with the Migration, and recorded by its whole path; one without is looked for in PATH.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || size(self[0]) > 0",message="is empty; write the program and its arguments as a list, such as [/usr/local/bin/tiers, --all]"
	Command []string `json:"command"`

	// env names environment variables of replumb that the program gets as well. docs/hooks.md lists those that every program gets;
	// it gets no others.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Env []string `json:"env,omitempty"`

	// publishOutput has the end of what a program that fails says on stderr go where people read of the failure: Events, the status,
	// notifications, the report. Default: only the terminal of the operator shows it.
	// +optional
	PublishOutput bool `json:"publishOutput,omitempty"`
}

// HTTPAction is a URL that JSON is posted to. Exactly one of url and urlFromEnv.
//
// +kubebuilder:validation:ExactlyOneOf=url;urlFromEnv
type HTTPAction struct {
	// url, with scheme http or https.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || isURL(self) && url(self).getScheme() in ['http', 'https'] && size(url(self).getHostname()) > 0",message="is not a URL of http or https with a host; write it with its scheme, such as https://hooks.example.com/replumb"
	URL string `json:"url,omitempty"`

	// urlFromEnv names the environment variable of replumb that holds the URL: one with a secret in it does not belong
	// into a Migration.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z_][A-Za-z0-9_]*$')",message="is not the name of an environment variable; write the name of the variable, such as SLACK_URL, which holds the URL"
	URLFromEnv string `json:"urlFromEnv,omitempty"`
}

// Hook is called at certain moments of a run.
//
// +kubebuilder:validation:XValidation:rule="!has(self.timeout) || duration(self.timeout) <= duration('10m')",message="is not longer than nothing and at most 10m; write a duration such as 30s",fieldPath=".timeout"
type Hook struct {
	// name of the hook.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// when it is called.
	When HookMoment `json:"when"`

	// of names the phases or tiers it is called for, or the tiers of the batches. Default: all.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	Of []string `json:"of,omitempty"`

	Action `json:",inline"`

	// onFailure Stop ends the run; Continue only tells. Default: Stop.
	// +optional
	// +kubebuilder:default=Stop
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

	// format JSON posts the event; Slack posts {"text": ...}, which Slack and its like take. Default: JSON.
	// +optional
	// +kubebuilder:default=JSON
	Format NotifyFormat `json:"format,omitempty"`

	// timeout of one call: 10s by default, 10m at most.
	// +optional
	// +kubebuilder:default="10s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('10m')",message="is not longer than nothing and at most 10m; write a duration such as 30s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// onFailure Stop ends the run when the call fails. Default: Continue.
	// +optional
	// +kubebuilder:default=Continue
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
	// days it begins on: Mon, Tue, Wed, Thu, Fri, Sat, Sun. Default: every day.
	// +optional
	// +kubebuilder:validation:items:Enum=Mon;Tue;Wed;Thu;Fri;Sat;Sun
	// +kubebuilder:validation:MaxItems=7
	Days []string `json:"days,omitempty"`

	// start and end as HH:MM. An end that is not after the start is on the next day.
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	Start string `json:"start"`
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	End string `json:"end"`

	// timeZone by its name in the IANA database, such as Europe/Berlin. Default: UTC.
	// +optional
	// +kubebuilder:default=UTC
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}
