package rehearsal

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/sample"
)

// sampled keeps the Services of the snapshot for a sample, and refuses a Migration that no lab can show.
func (m *rehearsal) sampled() error {
	if m.Packets == 0 {
		return nil
	}
	if err := m.sample().Validate(); err != nil {
		return refusal("rehearse without --packets", "a sample with packets: %w", err)
	}
	for _, o := range m.stock.objects {
		if o.GroupResource() != (schema.GroupResource{Resource: "services"}) {
			continue
		}
		svc := corev1.Service{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &svc); err != nil {
			return fmt.Errorf("reading %s: %w", o, err)
		}
		m.services = append(m.services, svc)
	}
	return nil
}

func (m *rehearsal) sample() sample.Options {
	return sample.Options{
		Services: m.services, Size: m.Packets, From: m.ranges[0], To: m.to, Migration: m.settings.Rehearsed,
		Commands: m.course(), Command: m.inLab, Progress: m.Progress,
	}
}

// packets moves a sample of the Services in a lab. What was lost there, or did not come to its end, fails the rehearsal.
func (m *rehearsal) packets(ctx context.Context) error {
	m.Progress("moving %d Services in a lab, with packets", m.Packets)
	result, err := sample.Run(ctx, m.sample())
	m.report.Packets = result
	if ended := new(failed); errors.As(err, &ended) {
		m.report.Outcome = Failed
		m.report.Errors = append(m.report.Errors, ended.Error())
		return nil
	}
	if err != nil {
		return err
	}
	if lost := result.Lost(); lost > 0 {
		m.report.Outcome = Failed
		m.report.Errors = append(m.report.Errors, fmt.Sprintf("%d requests were lost in the lab", lost))
	}
	return nil
}

// inLab runs a command of replumb on a lab.
func (m *rehearsal) inLab(ctx context.Context, name string, migration *v1alpha1.Migration, kubeconfig string) error {
	of := []string{migration.Name}
	if name == apply {
		file, err := m.write("sample.yaml", migration)
		if err != nil {
			return err
		}
		of = []string{"-f", file}
	}
	args := append([]string{name}, of...)
	s, err := m.program.run(ctx, append(args, "--yes", "--quiet", "--kubeconfig", kubeconfig, "--local")...)
	if err != nil {
		return err
	}
	if s.code != codeDone {
		return failure(name+" in the lab", s)
	}
	return nil
}
