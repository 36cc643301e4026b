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

// fromOutside are Secrets that an operator makes, since they hold a key, or that csi-cloud fills.
var fromOutside = map[string]bool{
	"Secret/csi-cloud-tls":    true,
	"Secret/csi-cloud-ca":     true,
	"Secret/csi-cloud-etcd":   true,
	"Secret/csi-cloud-page":   true,
	"Secret/csi-sidecars-tls": true,
}

// forDrivers are volumes that the base has for the components.
var forDrivers = map[string]bool{"registration": true, "kubelet": true}

// bundle is what references within some documents can lead to.
type bundle struct {
	has  map[string]bool
	pods []corev1.PodTemplateSpec
}

// Dangling lists what the documents refer to and do not have.
func Dangling(documents []Document) []string {
	all := bundle{has: map[string]bool{}}
	for _, document := range documents {
		all.has[document.Name()] = true
		switch workload := document.Object.(type) {
		case *appsv1.StatefulSet:
			all.pods = append(all.pods, numbered(workload)...)
		case *appsv1.DaemonSet:
			all.pods = append(all.pods, workload.Spec.Template)
		}
	}
	var problems []string
	for _, document := range documents {
		for _, problem := range all.missing(document.Object) {
			problems = append(problems, document.Name()+": "+problem)
		}
	}
	return problems
}

// numbered are the pods of a StatefulSet, each with the label by which a Service selects it alone.
func numbered(set *appsv1.StatefulSet) []corev1.PodTemplateSpec {
	var pods []corev1.PodTemplateSpec
	for number := range *set.Spec.Replicas {
		template := *set.Spec.Template.DeepCopy()
		template.Labels[appsv1.StatefulSetPodNameLabel] = fmt.Sprintf("%s-%d", set.Name, number)
		pods = append(pods, template)
	}
	return pods
}

// missing lists what one object refers to and the bundle does not have.
func (b bundle) missing(object any) []string {
	switch object := object.(type) {
	case *appsv1.StatefulSet:
		return b.statefulSet(object)
	case *appsv1.DaemonSet:
		problems := own(object.Spec.Selector, object.Spec.Template)
		return append(problems, pod(object.Spec.Template.Spec, map[string]bool{}, b.has)...)
	case *corev1.Service:
		return b.service(object)
	case *policyv1.PodDisruptionBudget:
		return b.selects(object.Spec.Selector)
	case *networkingv1.NetworkPolicy:
		return b.networkPolicy(object)
	case *rbacv1.ClusterRoleBinding:
		return b.bound(object.RoleRef, object.Subjects)
	case *rbacv1.RoleBinding:
		return b.bound(object.RoleRef, object.Subjects)
	}
	return nil
}

func (b bundle) statefulSet(set *appsv1.StatefulSet) []string {
	problems := own(set.Spec.Selector, set.Spec.Template)
	volumes := map[string]bool{}
	for _, claim := range set.Spec.VolumeClaimTemplates {
		volumes[claim.Name] = true
	}
	if !b.has["Service/"+set.Spec.ServiceName] {
		problems = append(problems, "there is no Service "+set.Spec.ServiceName)
	}
	return append(problems, pod(set.Spec.Template.Spec, volumes, b.has)...)
}

func (b bundle) service(service *corev1.Service) []string {
	var problems []string
	selector := &metav1.LabelSelector{MatchLabels: service.Spec.Selector}
	for _, port := range service.Spec.Ports {
		problems = append(problems, b.listens(selector, port.TargetPort, port.Protocol)...)
	}
	return problems
}

func (b bundle) networkPolicy(policy *networkingv1.NetworkPolicy) []string {
	problems := b.selects(&policy.Spec.PodSelector)
	for _, rule := range policy.Spec.Ingress {
		for _, port := range rule.Ports {
			problems = append(problems, b.listens(&policy.Spec.PodSelector, *port.Port, *port.Protocol)...)
		}
	}
	return problems
}

// own is for a workload, which has to select the pods that it makes.
func own(selector *metav1.LabelSelector, template corev1.PodTemplateSpec) []string {
	if len(chosen(selector, []corev1.PodTemplateSpec{template})) == 0 {
		return []string{"its selector is not for its own pods"}
	}
	return nil
}

func (b bundle) selects(selector *metav1.LabelSelector) []string {
	if len(chosen(selector, b.pods)) == 0 {
		return []string{"it selects no pod"}
	}
	return nil
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

// listens is for a port, by its name or its number, that a selected pod has to have.
func (b bundle) listens(selector *metav1.LabelSelector, port intstr.IntOrString, protocol corev1.Protocol) []string {
	for _, template := range chosen(selector, b.pods) {
		for _, container := range template.Spec.Containers {
			for _, its := range container.Ports {
				if its.Protocol == protocol && (its.Name == port.StrVal || its.ContainerPort == port.IntVal) {
					return nil
				}
			}
		}
	}
	return []string{fmt.Sprintf("no pod that it selects has a port %s/%s", port.String(), protocol)}
}

func (b bundle) bound(role rbacv1.RoleRef, subjects []rbacv1.Subject) []string {
	var problems []string
	if !b.has[role.Kind+"/"+role.Name] {
		problems = append(problems, "there is no "+role.Kind+" "+role.Name)
	}
	for _, subject := range subjects {
		if !b.has[subject.Kind+"/"+subject.Name] {
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
		for _, variable := range container.Env {
			if from := variable.ValueFrom; from != nil && from.ConfigMapKeyRef != nil && !has["ConfigMap/"+from.ConfigMapKeyRef.Name] {
				problems = append(problems, container.Name+": there is no ConfigMap "+from.ConfigMapKeyRef.Name)
			}
		}
		problems = append(problems, mounts(container, volumes, used)...)
	}
	for volume := range volumes {
		if !used[volume] && !forDrivers[volume] {
			problems = append(problems, "nobody mounts the volume "+volume)
		}
	}
	return problems
}

// mounts lists what is wrong with where a container has its volumes, and notes which it uses.
func mounts(container corev1.Container, volumes, used map[string]bool) []string {
	var problems []string
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
