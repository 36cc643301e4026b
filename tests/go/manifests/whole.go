package manifests

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// fromOutside are Secrets that an operator makes, since they hold a key.
var fromOutside = map[string]bool{"Secret/csi-cloud-tls": true}

// Dangling lists what the bundle refers to and does not have.
func Dangling(documents []Document) []string {
	has := map[string]bool{}
	var templates []corev1.PodTemplateSpec
	for _, document := range documents {
		has[document.Name()] = true
		switch workload := document.Object.(type) {
		case *appsv1.StatefulSet:
			templates = append(templates, workload.Spec.Template)
		case *appsv1.DaemonSet:
			templates = append(templates, workload.Spec.Template)
		}
	}
	var problems []string
	say := func(document Document, format string, rest ...any) {
		problems = append(problems, document.Name()+": "+fmt.Sprintf(format, rest...))
	}
	for _, document := range documents {
		switch object := document.Object.(type) {
		case *appsv1.StatefulSet:
			volumes := map[string]bool{}
			for _, claim := range object.Spec.VolumeClaimTemplates {
				volumes[claim.Name] = true
			}
			if !selected(object.Spec.Selector, []corev1.PodTemplateSpec{object.Spec.Template}) {
				say(document, "its selector is not for its own pods")
			}
			if !has["Service/"+object.Spec.ServiceName] {
				say(document, "there is no Service %s", object.Spec.ServiceName)
			}
			for _, problem := range pod(object.Spec.Template.Spec, volumes, has) {
				say(document, "%s", problem)
			}
		case *appsv1.DaemonSet:
			if !selected(object.Spec.Selector, []corev1.PodTemplateSpec{object.Spec.Template}) {
				say(document, "its selector is not for its own pods")
			}
			for _, problem := range pod(object.Spec.Template.Spec, map[string]bool{}, has) {
				say(document, "%s", problem)
			}
		case *corev1.Service:
			selector := &metav1.LabelSelector{MatchLabels: object.Spec.Selector}
			for _, port := range object.Spec.Ports {
				if !listens(selector, templates, port.TargetPort, port.Protocol) {
					say(document, "no pod that it selects has a port %s/%s", port.TargetPort.String(), port.Protocol)
				}
			}
		case *policyv1.PodDisruptionBudget:
			if !selected(object.Spec.Selector, templates) {
				say(document, "it selects no pod")
			}
		case *networkingv1.NetworkPolicy:
			if !selected(&object.Spec.PodSelector, templates) {
				say(document, "it selects no pod")
			}
			for _, rule := range object.Spec.Ingress {
				for _, port := range rule.Ports {
					if !listens(&object.Spec.PodSelector, templates, *port.Port, *port.Protocol) {
						say(document, "no pod that it selects has a port %s/%s", port.Port.String(), *port.Protocol)
					}
				}
			}
		case *rbacv1.ClusterRoleBinding:
			for _, problem := range bound(object.RoleRef, object.Subjects, has) {
				say(document, "%s", problem)
			}
		case *rbacv1.RoleBinding:
			for _, problem := range bound(object.RoleRef, object.Subjects, has) {
				say(document, "%s", problem)
			}
		}
	}
	return problems
}

func selected(selector *metav1.LabelSelector, templates []corev1.PodTemplateSpec) bool {
	return len(chosen(selector, templates)) > 0
}

func chosen(selector *metav1.LabelSelector, templates []corev1.PodTemplateSpec) []corev1.PodTemplateSpec {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || parsed.Empty() {
		return nil
	}
	var these []corev1.PodTemplateSpec
	for _, template := range templates {
		if parsed.Matches(labels.Set(template.Labels)) {
			these = append(these, template)
		}
	}
	return these
}

// listens is whether a pod that is selected has the port, by its name or its number.
func listens(selector *metav1.LabelSelector, templates []corev1.PodTemplateSpec, port intstr.IntOrString, protocol corev1.Protocol) bool {
	for _, template := range chosen(selector, templates) {
		for _, container := range template.Spec.Containers {
			for _, its := range container.Ports {
				if its.Protocol == protocol && (its.Name == port.StrVal || its.ContainerPort == port.IntVal) {
					return true
				}
			}
		}
	}
	return false
}

func bound(role rbacv1.RoleRef, subjects []rbacv1.Subject, has map[string]bool) []string {
	var problems []string
	if !has[role.Kind+"/"+role.Name] {
		problems = append(problems, "there is no "+role.Kind+" "+role.Name)
	}
	for _, subject := range subjects {
		if !has[subject.Kind+"/"+subject.Name] {
			problems = append(problems, "there is no "+subject.Kind+" "+subject.Name)
		}
	}
	return problems
}

// pod lists what a pod needs and has not: `volumes` are those it gets from elsewhere.
func pod(spec corev1.PodSpec, volumes, has map[string]bool) []string {
	var problems []string
	if !has["ServiceAccount/"+spec.ServiceAccountName] {
		problems = append(problems, "there is no ServiceAccount "+spec.ServiceAccountName)
	}
	for _, volume := range spec.Volumes {
		if volumes[volume.Name] {
			problems = append(problems, "volume "+volume.Name+" is there twice")
		}
		volumes[volume.Name] = true
		if from := volume.ConfigMap; from != nil && !has["ConfigMap/"+from.Name] {
			problems = append(problems, "there is no ConfigMap "+from.Name)
		}
		if from := volume.Secret; from != nil && !fromOutside["Secret/"+from.SecretName] {
			problems = append(problems, "there is no Secret "+from.SecretName)
		}
	}
	used, names := map[string]bool{}, map[string]bool{}
	for _, container := range spec.Containers {
		if names[container.Name] {
			problems = append(problems, "container "+container.Name+" is there twice")
		}
		names[container.Name] = true
		paths := map[string]bool{}
		for _, mount := range container.VolumeMounts {
			used[mount.Name] = true
			if !volumes[mount.Name] {
				problems = append(problems, container.Name+" mounts "+mount.Name+", which is no volume")
			}
			if paths[mount.MountPath] {
				problems = append(problems, container.Name+" mounts two volumes at "+mount.MountPath)
			}
			paths[mount.MountPath] = true
		}
		if socket, wants := flag(container.Args, "--csi-address="); wants && !below(socket, paths) {
			problems = append(problems, container.Name+" has no volume with "+socket)
		}
	}
	for volume := range volumes {
		if !used[volume] && volume != "registration" && volume != "kubelet" {
			problems = append(problems, "nobody mounts the volume "+volume)
		}
	}
	return problems
}

// flag is the value of the flag that begins so.
func flag(arguments []string, name string) (string, bool) {
	for _, argument := range arguments {
		if value, found := strings.CutPrefix(argument, name); found {
			return value, true
		}
	}
	return "", false
}

func below(path string, directories map[string]bool) bool {
	for directory := range directories {
		if strings.HasPrefix(path, directory+"/") {
			return true
		}
	}
	return false
}
