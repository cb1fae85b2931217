package hop

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

// changedf is an error about a Service that others have changed in the middle of its move.
func changedf(key types.NamespacedName, format string, args ...any) error {
	return &fault.Hinted{
		Err: fmt.Errorf("service %s "+format, append([]any{key}, args...)...),
		Hint: fmt.Sprintf("others have changed it meanwhile. Take the change back, and run the same command again; or let it keep its address: "+
			"kubectl annotate service -n %s %s %s=%s", key.Namespace, key.Name, v1alpha1.AnnotationStrategy, v1alpha1.StrategyPin),
	}
}
